import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from fidelity.errors import NotWhatWasAskedError, PromptError, UnreachableError
from fidelity.prompts.families import Family
from fidelity.prompts.fitting import fit
from fidelity.prompts.local import LocalTokenizer
from fidelity.prompts.tokenizers import ServerTokenizer, check_ids
from fidelity.refserver import chat

MESSAGES = [{"role": "user", "content": "what is the capital of France?"}]


@pytest.mark.parametrize("thinking", [False, True])
def test_local_ids_are_those_of_template_and_vocabulary(embedded_folder: Path, thinking: bool) -> None:
    local = LocalTokenizer(embedded_folder, thinking)
    text = chat.render(MESSAGES, enable_thinking=thinking)
    plain = Tokenizer.from_file(str(embedded_folder / "tokenizer.json"))
    assert local.encode(MESSAGES) == plain.encode(text, add_special_tokens=False).ids
    assert local.decode(local.encode(MESSAGES)) == text
    assert local.vocab_size == 2048
    assert f"thinking {'on' if thinking else 'off'}" in local.source


def test_a_tokenizer_file_stands_for_its_folder(embedded_folder: Path, embedded: LocalTokenizer) -> None:
    assert LocalTokenizer(embedded_folder / "tokenizer.json", False).encode(MESSAGES) == embedded.encode(
        MESSAGES
    )


def test_source_tells_tokenizers_apart(embedded_folder: Path, tmp_path: Path) -> None:
    other = copy_of(embedded_folder, tmp_path)
    data = json.loads((other / "tokenizer.json").read_text(encoding="utf-8"))
    data["model"]["merges"] = data["model"]["merges"][:-1]
    (other / "tokenizer.json").write_text(json.dumps(data), encoding="utf-8")
    sources = [
        LocalTokenizer(folder, False).source.partition("sha256")[2] for folder in (embedded_folder, other)
    ]
    assert all(sources)
    assert sources[0] != sources[1]


def copy_of(folder: Path, to: Path) -> Path:
    for file in folder.iterdir():
        (to / file.name).write_bytes(file.read_bytes())
    return to


def test_missing_folder() -> None:
    with pytest.raises(PromptError, match=r"there is no folder \.?/?nowhere/model") as refused:
        LocalTokenizer("./nowhere/model", False)
    assert "/tokenize" in str(refused.value.hint)


def test_folder_without_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(PromptError, match="there is no tokenizer in the folder"):
        LocalTokenizer(tmp_path, False)


def test_broken_tokenizer_file(embedded_folder: Path, tmp_path: Path) -> None:
    folder = copy_of(embedded_folder, tmp_path)
    (folder / "tokenizer.json").write_text("{", encoding="utf-8")
    with pytest.raises(PromptError, match="cannot load the tokenizer in"):
        LocalTokenizer(folder, False)


def test_no_chat_template(embedded_folder: Path, tmp_path: Path) -> None:
    folder = copy_of(embedded_folder, tmp_path)
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(PromptError, match="has no chat template") as refused:
        LocalTokenizer(folder, False)
    assert "chat_template.jinja" in str(refused.value.hint)


def test_template_that_refuses_a_system_prompt(embedded_folder: Path, tmp_path: Path, quiz: Family) -> None:
    folder = copy_of(embedded_folder, tmp_path)
    template = (folder / "chat_template.jinja").read_text(encoding="utf-8")
    refuse = "{%- if messages[0].role == 'system' -%}{{- raise_exception('no system role') -}}{%- endif -%}"
    (folder / "chat_template.jinja").write_text(refuse + template, encoding="utf-8")
    with pytest.raises(PromptError, match="the chat template refuses the prompt: no system role"):
        fit(quiz, quiz.items[0], 100, LocalTokenizer(folder, False))


def test_hub_id_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(PromptError, match=r"there is no folder 'some/model'.*HF_HUB_OFFLINE is set"):
        LocalTokenizer("some/model", False)


def test_hub_id_without_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(PromptError, match=r"not in the local cache; http://127\.0\.0\.1:9 cannot be reached"):
        LocalTokenizer("some/model", False)


def test_loading_is_silent_and_late(embedded_folder: Path) -> None:
    code = (
        "import sys, fidelity.prompts.fitting, fidelity.prompts.local as local\n"
        "assert 'transformers' not in sys.modules and 'tokenizers' not in sys.modules\n"
        f"local.LocalTokenizer({str(embedded_folder)!r}, False).encode({MESSAGES!r})\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def server(
    tokenizer: LocalTokenizer, calls: list[tuple[str, dict[str, Any]]]
) -> Callable[..., dict[str, Any]]:
    def post(path: str, body: dict[str, Any]) -> dict[str, Any]:
        calls.append((path, body))
        if path == "/detokenize":
            return {"text": tokenizer.decode(body["tokens"])}
        ids = tokenizer.encode(body["messages"])
        return {"tokens": ids, "count": len(ids), "max_model_len": 32768}

    return post


@pytest.mark.parametrize("thinking", [False, True])
def test_server_tokenizer(embedded_folder: Path, quiz: Family, thinking: bool) -> None:
    local = LocalTokenizer(embedded_folder, thinking)
    calls: list[tuple[str, dict[str, Any]]] = []
    asked = ServerTokenizer(server(local, calls), thinking, vocab_size=2048)
    assert fit(quiz, quiz.items[0], 129, asked) == fit(quiz, quiz.items[0], 129, local)
    path, body = calls[-1]
    assert path == "/tokenize"
    assert body["chat_template_kwargs"] == {"enable_thinking": thinking}
    assert body["add_generation_prompt"] is True
    assert asked.decode(local.encode(MESSAGES)) == local.decode(local.encode(MESSAGES))


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ({"tokens": []}, "no token ids came"),
        ({"count": 3}, "no token ids came"),
        ({"tokens": ["a", "b"]}, "no token ids came"),
        ({"tokens": [True, 1]}, "no token ids came"),
        ({"tokens": [1, 2], "count": 3}, "contradicts itself: 2 ids, count 3"),
    ],
)
def test_server_that_answers_otherwise(answer: dict[str, Any], message: str) -> None:
    with pytest.raises(PromptError, match=message) as refused:
        ServerTokenizer(lambda path, body: answer, False).encode(MESSAGES)
    assert "local tokenizer" in str(refused.value.hint)
    with pytest.raises(PromptError, match="gave no text"):
        ServerTokenizer(lambda path, body: answer, False).decode([1])


def test_server_without_tokenize() -> None:
    def refuse(path: str, body: dict[str, Any]) -> dict[str, Any]:
        raise NotWhatWasAskedError("HTTP 404: Not Found")

    with pytest.raises(PromptError, match="no usable /tokenize: HTTP 404") as refused:
        ServerTokenizer(refuse, False).encode(MESSAGES)
    assert "local tokenizer" in str(refused.value.hint)


def test_server_that_is_gone_is_not_a_missing_tokenize() -> None:
    def gone(path: str, body: dict[str, Any]) -> dict[str, Any]:
        raise UnreachableError("connection refused")

    with pytest.raises(UnreachableError):
        ServerTokenizer(gone, False).encode(MESSAGES)


def test_check_ids() -> None:
    check_ids([0, 2047], 2048)
    check_ids([0, 10**6], None)
    with pytest.raises(PromptError, match="1 of 2 token ids are outside the vocabulary of 2048: 2048 first"):
        check_ids([5, 2048], 2048)
    with pytest.raises(PromptError, match="-1 first"):
        check_ids([-1], None)
