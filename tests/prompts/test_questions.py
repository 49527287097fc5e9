"""Question files: what is read, what is refused and where, and what counts as a right answer."""

import json
from pathlib import Path

import pytest

from fidelity.errors import PromptError
from fidelity.prompts.questions import graded, load_questions, shipped


def write(folder: Path, *lines: object, name: str = "own.jsonl") -> Path:
    path = folder / name
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")
    return path


def test_a_question_of_gsm8k_is_graded_by_its_final_answer(tmp_path: Path) -> None:
    path = write(tmp_path, {"question": "How many?", "answer": "2 + 3 = <<2+3=5>>5\n#### 1,005"})
    (question,) = load_questions([path])
    assert (question.id, question.file, question.text, question.answer) == (
        "own:1",
        "own",
        "How many?",
        "1,005",
    )


def test_choices_are_lettered_and_the_answer_may_be_a_letter_or_a_text(tmp_path: Path) -> None:
    flies = {"question": "Which flies?", "choices": ["stone", "eagle", "table"]}
    path = write(tmp_path, {**flies, "answer": "b"}, {**flies, "question": "Flies?", "answer": "eagle"})
    first, second = load_questions([path])
    assert first.text == "Which flies? A) stone B) eagle C) table Reply with only the letter A, B or C."
    assert first.answer == second.answer == "B) eagle"


def test_numbers_blank_lines_a_mark_and_other_keys_are_fine(tmp_path: Path) -> None:
    path = write(tmp_path, {"question": "a", "answer": 5, "id": 7}, "", {"question": "b", "answer": "x"})
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert [(one.id, one.answer) for one in load_questions([path])] == [("own:1", "5"), ("own:3", "x")]
    assert [one.id for one in load_questions([path], limit=1)] == ["own:1"]


GOOD = {"question": "a", "answer": "b"}


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"question": "c", ', "not valid JSON"),
        ("[1]", "no JSON object"),
        ({"question": "c"}, "the key 'answer' is missing"),
        ({"answer": "c"}, "the key 'question' is missing"),
        ({"question": ["c"], "answer": "d"}, "'question' must be a text"),
        ({"question": "c", "answer": True}, "'answer' must be a text"),
        ({"question": " ", "answer": "d"}, "'question' is empty"),
        ({"question": "c", "answer": "so ####"}, "'answer after ####' is empty"),
        ({"question": "c", "answer": "A", "choices": ["one"]}, "'choices' must be a list of 2 to 26 texts"),
        ({"question": "c", "answer": "A", "choices": "AB"}, "'choices' must be a list"),
        ({"question": "c", "answer": "A", "choices": ["x", "x"]}, "two of the 'choices' are the same"),
        ({"question": "c", "answer": "C", "choices": ["x", "y"]}, "letters A to B"),
        ({"question": "{filler} {filler}", "answer": "d"}, "stands more than once"),
        (GOOD, "the same question is in"),
    ],
)
def test_a_broken_line_is_named(line: object, says: str, tmp_path: Path) -> None:
    path = write(tmp_path, GOOD, line)
    with pytest.raises(PromptError) as caught:
        load_questions([path])
    assert caught.value.message.startswith(f"{path}, line 2: ")
    assert says in caught.value.message


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(PromptError, match=r"cannot read .*none\.jsonl"):
        load_questions([tmp_path / "none.jsonl"])
    with pytest.raises(PromptError, match="holds no questions"):
        load_questions([write(tmp_path, "", "")])
    latin = tmp_path / "latin.jsonl"
    latin.write_bytes('{"question": "é", "answer": "x"}'.encode("latin-1"))
    with pytest.raises(PromptError, match="not UTF-8 text"):
        load_questions([latin])
    (tmp_path / "other").mkdir()
    other = write(tmp_path / "other", GOOD)
    with pytest.raises(PromptError, match="two question files are called 'own'"):
        load_questions([write(tmp_path, GOOD), other])


def test_the_same_question_in_two_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        PromptError, match=r"second\.jsonl, line 1: the same question is in .*own\.jsonl, line 1"
    ):
        load_questions([write(tmp_path, GOOD), write(tmp_path, GOOD, name="second.jsonl")])


@pytest.mark.parametrize(
    ("answer", "expected", "right"),
    [
        ("So it is 42.", "42", True),
        ("First 42, then 43", "42", False),
        ("It costs $1,250.00", "1250", True),
        ("-3", "-3", True),
        ("3", "-3", False),
        ("forty-two", "42", False),
        ("", "42", False),
        ("The capital is Paris.", "Paris", True),
        ("PARIS!", "paris", True),
        ("Parisian", "Paris", False),
        ("", "Paris", False),
        ("B", "B) eagle", True),
        ("(B) of course", "B) eagle", True),
        ("A", "B) eagle", False),
        ("A, not the eagle", "B) eagle", False),
        ("the eagle", "B) eagle", True),
        ("Best guess: eagle", "B) eagle", True),
        ("+", "+", True),
        ("-", "+", False),
    ],
)
def test_grading(answer: str, expected: str, right: bool) -> None:
    assert graded(answer, expected) is right


def test_the_shipped_sets_are_sound_and_mostly_fitted() -> None:
    found = load_questions(shipped())
    assert {one.file for one in found} == {"arithmetic", "facts"}
    assert len(found) >= 40
    for file in ("arithmetic", "facts"):
        own = [one for one in found if one.file == file]
        assert sum(one.fits for one in own) >= 12  # fewer could not show a significant loss
        assert not all(one.fits for one in own)
