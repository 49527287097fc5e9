"""Graded questions from JSONL files: one object a line with `question`, `answer` and perhaps `choices`.

GSM8K's own files work as they are: of an answer that ends with "#### 42", that is the part that is graded.
Other keys are left alone. `{filler}` in a question is where it may be made longer, to a chosen number of
tokens.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fidelity.errors import PromptError
from fidelity.paths import data_dir
from fidelity.prompts.families import FILLER

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
FINAL = "####"
PLACE = "{" + FILLER + "}"


@dataclass(frozen=True)
class Question:
    """`id` is "file:line"; `text` what the user asks, its choices included; `answer` what is graded: a
    number, a text, or of a choice the letter and its text, as "B) eagle"."""

    id: str
    file: str
    text: str
    answer: str

    @property
    def fits(self) -> bool:
        """May it be made longer?"""
        return PLACE in self.text


def shipped() -> tuple[Path, ...]:
    """The question files that come with fidelity."""
    return tuple(sorted((data_dir("prompts") / "tasks").glob("*.jsonl")))


def load_questions(files: Sequence[Path], limit: int | None = None) -> list[Question]:
    """All questions of the files, the first `limit` of each. Raises PromptError naming file and line of the
    first one that cannot be used."""
    names = [path.stem for path in files]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise PromptError(
            f"two question files are called '{twice}'", "rename one: each is reported by its name"
        )
    known: dict[str, str] = {}
    return [question for path in files for question in _read(path, known)[:limit]]


def _read(path: Path, known: dict[str, str]) -> list[Question]:
    """`known` holds where each question's text was seen first."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as exc:
        raise PromptError(f"cannot read {path}: {exc.strerror}", "name a JSONL file of questions") from exc
    except UnicodeDecodeError as exc:
        raise PromptError(f"{path} is not UTF-8 text (byte {exc.start})", "save it as UTF-8") from exc
    found = []
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            where = f"{path}, line {number}"
            question = _question(line, where, path.stem, number)
            if question.text in known:
                raise PromptError(f"{where}: the same question is in {known[question.text]}", "leave one out")
            known[question.text] = where
            found.append(question)
    if not found:
        raise PromptError(f"{path} holds no questions", "write one JSON object on each line")
    return found


def _question(line: str, where: str, file: str, number: int) -> Question:
    try:
        data = json.loads(line)
    except ValueError as exc:
        raise PromptError(f"{where}: not valid JSON: {exc}", "write one JSON object on each line") from exc
    if not isinstance(data, dict):
        raise PromptError(f"{where}: no JSON object", 'write {"question": ..., "answer": ...}')
    for key in ("question", "answer"):
        if key not in data:
            raise PromptError(
                f"{where}: the key '{key}' is missing", f"its keys are: {', '.join(map(str, data))}"
            )
    text = _text(data["question"], "question", where)
    if text.count(PLACE) > 1:
        raise PromptError(f"{where}: '{PLACE}' stands more than once in 'question'")
    raw = data["answer"]
    if isinstance(raw, int | float) and not isinstance(raw, bool):
        raw = str(raw)
    answer = _text(raw, "answer", where)
    if data.get("choices") is not None:
        text, answer = _with_choices(text, answer, data["choices"], where)
    elif FINAL in answer:
        answer = _text(answer.rpartition(FINAL)[2], f"answer after {FINAL}", where)
    return Question(f"{file}:{number}", file, text, answer)


def _text(value: Any, key: str, where: str) -> str:
    if not isinstance(value, str):
        raise PromptError(f"{where}: '{key}' must be a text, not {json.dumps(value)[:40]}")
    if not value.strip():
        raise PromptError(f"{where}: '{key}' is empty")
    return value.strip()


def _with_choices(text: str, answer: str, choices: Any, where: str) -> tuple[str, str]:
    """The question with its choices lettered, and the right one."""
    if not isinstance(choices, list) or not 2 <= len(choices) <= len(LETTERS):
        raise PromptError(f"{where}: 'choices' must be a list of 2 to {len(LETTERS)} texts")
    texts = [_text(choice, "choices", where) for choice in choices]
    if len(set(texts)) != len(texts):
        raise PromptError(f"{where}: two of the 'choices' are the same")
    letters = LETTERS[: len(texts)]
    if answer in texts:
        right = texts.index(answer)
    elif len(answer) == 1 and answer.upper() in letters:
        right = letters.index(answer.upper())
    else:
        raise PromptError(
            f"{where}: 'answer' is {answer!r}, which is neither one of the choices nor one of the letters "
            f"{letters[0]} to {letters[-1]}"
        )
    lettered = " ".join(f"{letter}) {choice}" for letter, choice in zip(letters, texts, strict=True))
    some = ", ".join(letters[:-1]) + f" or {letters[-1]}"
    return f"{text} {lettered} Reply with only the letter {some}.", f"{letters[right]}) {texts[right]}"


_NUMBER = re.compile(r"-?\$?\d[\d,]*(?:\.\d+)?|-?\$?\.\d+")
_CHOICE = re.compile(r"([A-Z])\) (.+)", re.DOTALL)


def graded(answer: str, expected: str) -> bool:
    """Is an answer right? `expected` is a Question's `answer`: of a choice, the letter that the answer begins
    with, or else its text, must be the right one; of a number, the last number in the answer; a text must
    stand in the answer, whole words, whatever their case and marks."""
    choice = _CHOICE.fullmatch(expected)
    if choice is not None:
        letter = re.match(r"\W*([A-Z])\b", answer)
        return letter[1] == choice[1] if letter else _holds(answer, choice[2])
    wanted = _number(expected) if _NUMBER.fullmatch(expected) else None
    if wanted is not None:
        numbers = _NUMBER.findall(answer)
        return bool(numbers) and _number(numbers[-1]) == wanted
    return _holds(answer, expected)


def _number(text: str) -> float | None:
    try:
        return float(text.replace(",", "").replace("$", ""))
    except ValueError:
        return None


def _holds(answer: str, wanted: str) -> bool:
    return f" {_plain(wanted)} " in f" {_plain(answer)} "


def _plain(text: str) -> str:
    words = re.sub(r"[^\w\s]", " ", text.casefold()).split()
    return " ".join(words) or text.strip()
