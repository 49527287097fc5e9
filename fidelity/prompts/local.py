"""A tokenizer loaded on this machine with transformers, from a folder or from the Hugging Face hub."""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from fidelity.errors import PromptError
from fidelity.prompts.tokenizers import Messages, Tools, mode

_HINT = "name a folder with tokenizer.json and a chat template, or leave it out to use the server's /tokenize"
_HUB_WAIT = 5.0
"""Seconds to wait for the hub before calling it unreachable (transformers would try for 45)."""


class LocalTokenizer:
    """`name` is a folder, a tokenizer.json, or a hub id such as "Qwen/Qwen3.6-35B-A3B".

    Raises PromptError when nothing can be loaded or there is no chat template.
    """

    def __init__(self, name: str | Path, thinking: bool) -> None:
        place = _folder(str(name))
        self._tokenizer = _load(place, str(name))
        self._thinking = thinking
        if not self._tokenizer.chat_template:
            raise PromptError(
                f"the tokenizer '{name}' has no chat template",
                "put its chat_template.jinja beside tokenizer.json, or use the server's /tokenize",
            )
        self.vocab_size: int | None = len(self._tokenizer)
        self.source = f"local {name}{_digest(place)}, {mode(thinking)}"

    def encode(self, messages: Messages, tools: Tools = ()) -> list[int]:
        """Raises PromptError when the chat template refuses the messages (some know no system role)."""
        import jinja2

        try:
            ids = self._tokenizer.apply_chat_template(
                messages,
                tools=list(tools) or None,
                tokenize=True,
                add_generation_prompt=True,
                return_dict=False,
                enable_thinking=self._thinking,
            )
        except jinja2.TemplateError as error:
            raise PromptError(
                f"the chat template refuses the prompt: {error}",
                "choose families whose turns it accepts",
            ) from error
        return [int(token) for token in ids]

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=False)
        return text


def _folder(name: str) -> Path | None:
    """The local folder meant by `name`, or None for a hub id. Raises PromptError when it can be neither."""
    path = Path(name).expanduser()
    if path.is_file():
        path = path.parent
    if path.is_dir():
        if not (path / "tokenizer.json").exists() and not (path / "tokenizer_config.json").exists():
            raise PromptError(f"there is no tokenizer in the folder {path}", _HINT)
        return path
    if name.startswith((".", "/", "~")) or name.count("/") > 1 or name.endswith((".json", "/")):
        raise PromptError(f"there is no folder {path}", _HINT)
    return None


def _load(place: Path | None, name: str) -> Any:
    """The transformers tokenizer in the folder `place`, or of the hub id `name`; a cached one is preferred.

    Raises PromptError.
    """
    # transformers reads this when first imported: it would warn that there is no PyTorch, which tokenizing
    # does not need.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    from transformers import AutoTokenizer

    if place is not None:
        try:
            return AutoTokenizer.from_pretrained(str(place), local_files_only=True)
        except Exception as error:
            raise PromptError(f"cannot load the tokenizer in {place}: {_first_line(error)}", _HINT) from error
    try:
        return AutoTokenizer.from_pretrained(name, local_files_only=True)
    except (OSError, ValueError):
        _reach_hub(name)
    try:
        return AutoTokenizer.from_pretrained(name)
    except Exception as error:
        raise PromptError(
            f"cannot load the tokenizer '{name}' from the hub: {_first_line(error)}", _HINT
        ) from error


def _reach_hub(name: str) -> None:
    """Raise PromptError unless the hub answers."""
    message = f"there is no folder '{name}', and as a hub id it is not in the local cache"
    if os.environ.get("HF_HUB_OFFLINE", "0").lower() in ("1", "true", "yes", "on"):
        raise PromptError(f"{message} (HF_HUB_OFFLINE is set)", _HINT)
    hub = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    try:
        httpx.head(hub, timeout=_HUB_WAIT)
    except httpx.TransportError as error:
        raise PromptError(f"{message}; {hub} cannot be reached ({_first_line(error)})", _HINT) from error


def _digest(place: Path | None) -> str:
    """First digits of the SHA-256 of tokenizer.json, so that two records can be told apart."""
    file = place / "tokenizer.json" if place else None
    if file is None or not file.exists():
        return ""
    return f" (sha256 {hashlib.sha256(file.read_bytes()).hexdigest()[:12]})"


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
