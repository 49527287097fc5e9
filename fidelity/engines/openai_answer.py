"""The answer of `/v1/chat/completions`, its tokens keyed by their bytes: the API tells no ids."""

import hashlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from fidelity.engines import json_reader
from fidelity.engines.wire import read_body
from fidelity.observations import Answer

_IDS = 2**31
"""As many as an id can be. Of 300 tokens seen in a run, two share one with a chance of 2e-5."""


def read_response(status: int, text: str, latency: float) -> Answer:
    """The one answer of an HTTP response; the raw body is kept where anything about it is odd."""
    return read_body(status, text, latency, lambda data: _read(data, latency, text))


def token_id(data: bytes) -> int:
    """A number for a token of these bytes, the same in every run."""
    return int.from_bytes(hashlib.sha256(data).digest()[:8]) % _IDS


def _read(data: Mapping[str, Any], latency: float, text: str) -> Answer:
    choice = data["choices"][0]
    message = choice["message"]
    content = message.get("content") or ""
    thought = message.get("reasoning_content") or message.get("reasoning") or ""
    faces: Counter[str] = Counter()
    entries = (choice.get("logprobs") or {}).get("content") or []
    left: str | None = thought + content
    ids, logprobs, top, values = [], [], [], 0
    mismatched = False
    for entry in entries:
        listed = entry.get("top_logprobs") or []
        # An entry's own token is mostly in its list too: it is looked at once.
        row = [(_bytes(one), json_reader.number(one.get("logprob"), faces)) for one in listed]
        values += len(row)
        own = (_bytes(entry), json_reader.number(entry.get("logprob"), faces if not row else Counter()))
        values += not row
        emitted, left = _emitted(own, row, left)
        mismatched |= emitted is None
        chosen, logprob = emitted or own
        merged = _merged(row)
        ids.append(token_id(chosen))
        logprobs.append(merged.get(token_id(chosen), logprob))
        top.append(list(merged.items()))
    usage = data.get("usage") or {}
    details = usage.get("prompt_tokens_details") or {}
    return Answer(
        status=200,
        latency=latency,
        text=thought + content,
        output_ids=ids,
        prompt_tokens=json_reader.count(usage.get("prompt_tokens")),
        cached_tokens=json_reader.count(details.get("cached_tokens")),
        finish_reason=choice.get("finish_reason"),
        logprobs=logprobs,
        top=top,
        faces=dict(faces),
        values=values,
        mismatched=mismatched,
        raw=text[:20_000] if faces or mismatched else None,
    )


_Pair = tuple[bytes, float]


def _emitted(own: _Pair, row: Sequence[_Pair], left: str | None) -> tuple[_Pair | None, str | None]:
    """The token that was emitted, by what is left of the text, and what is left behind it; no token where
    none listed can be. `left` is None where the text can no longer be followed.

    Some servers tell the first of an unsorted list as the emitted token: there the likeliest that the text
    goes on with is taken.
    """
    if not left:
        return own, left
    ranked = sorted(row, key=lambda pair: -pair[1] if pair[1] == pair[1] else math.inf)
    in_order = [value for _, value in row] == [value for _, value in ranked] or any(
        value != value for _, value in row
    )
    for pair in [own, *ranked] if in_order else [*ranked, own]:
        for form in _forms(pair[0]):
            if form and left.startswith(form):
                return pair, left[len(form) :]
            # The text of an answer may come without the space it begins with.
            if form.strip() and form != form.lstrip() and left.startswith(form.lstrip()):
                return pair, left[len(form.lstrip()) :]
    if _silent(own[0]):
        return own, left
    if "�" in left or not _is_text(own[0]):
        return own, None
    return None, None


def _silent(data: bytes) -> bool:
    """Is it a token that texts leave out: a special one, or white space?"""
    text = data.decode("utf-8", "replace")
    return not text.strip() or (text.startswith("<") and text.endswith(">"))


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return "�" not in data.decode()


def _forms(data: bytes) -> list[str]:
    """What a token may be in the text: its bytes, or what a raw BPE or sentence piece stands for."""
    if not _is_text(data):
        return []
    text = data.decode()
    raw = bytes(_piece_bytes().get(character, 0) for character in text)
    unpacked = raw.decode("utf-8", "replace") if all(c in _piece_bytes() for c in text) else text
    return list(dict.fromkeys((text, unpacked, text.replace("▁", " "))))


@lru_cache(maxsize=1)
def _piece_bytes() -> dict[str, int]:
    """The byte that each character of a byte-level BPE piece stands for: itself where it can be printed, else
    the next of those from 256 on."""
    printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in printed]
    return {chr(byte): byte for byte in printed} | {chr(256 + n): byte for n, byte in enumerate(rest)}


def _bytes(entry: Mapping[str, Any]) -> bytes:
    told = entry.get("bytes")
    return bytes(told) if isinstance(told, list) and told else str(entry["token"]).encode()


def _merged(row: Sequence[_Pair]) -> dict[int, float]:
    """The row by id, in the server's order; of two tokens with the same bytes, the probabilities added."""
    merged: dict[int, float] = {}
    for data, logprob in row:
        token = token_id(data)
        before = merged.get(token)
        merged[token] = logprob if before is None else _added(before, logprob)
    return merged


def _added(one: float, other: float) -> float:
    if not (math.isfinite(one) and math.isfinite(other)):
        return one if not math.isfinite(one) else other
    high = max(one, other)
    return high + math.log(math.exp(one - high) + math.exp(other - high))
