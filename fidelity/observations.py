"""The record: one request and its whole answer per JSON line, appended and flushed before the next is sent.

Floats that JSON cannot carry are written as the strings "nan", "inf" and "-inf".
"""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from fidelity.errors import ResultsError
from fidelity.memory import no_collection

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = 1

Row = list[tuple[int, float]]
"""One position's (token id, logprob in nats) pairs, in the server's order."""


@dataclass(slots=True, kw_only=True)
class Answer:
    """What came back. `status` is the HTTP status, 0 when there was no answer at all.

    `logprobs` has one value (nats) per output token, NaN where the server gave none; `top` and `asked` have
    one row per output position. `faces` counts each way a logprob was not a finite number, out of `values`
    looked at. `mismatched`: the logprobs are of other tokens than those sent or answered, so that they say
    nothing. `latency` is in seconds: to the whole answer, or of a streamed one to the last event that brought
    tokens; `first_token` to the first, which brought `first_count` of them. `raw` is the body, kept where
    anything about it is odd. `scored` and `scored_top` are of prompt tokens: logprobs (nats) and top rows of
    those that the request wanted scored. `spec` holds the figures of speculative decoding by sglang's names.
    `tool_calls` are those of a chat answer, each with its `name` and `arguments` as told. `replica` is who
    answered behind a router, None where that is not told or not asked.
    """

    status: int
    latency: float
    error: str | None = None
    text: str | None = None
    output_ids: list[int] = field(default_factory=list)
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: str | None = None
    logprobs: list[float] = field(default_factory=list)
    top: list[Row] = field(default_factory=list)
    asked: list[Row] = field(default_factory=list)
    faces: dict[str, int] = field(default_factory=dict)
    values: int = 0
    mismatched: bool = False
    dp_rank: int | None = None
    raw: str | None = None
    scored: list[float] = field(default_factory=list)
    scored_top: list[Row] = field(default_factory=list)
    spec: dict[str, float] = field(default_factory=dict)
    first_token: float | None = None
    first_count: int | None = None
    tool_calls: list[dict[str, str]] = field(default_factory=list)
    replica: str | None = None

    @property
    def failed(self) -> bool:
        """Nothing came that could be judged; a NaN that came as an HTTP error can be."""
        return self.error is not None and not self.faces

    @property
    def crashed(self) -> bool:
        """The server itself failed the request: no answer at all, or HTTP 5xx that is no NaN."""
        return self.failed and (self.status == 0 or self.status >= 500)

    @property
    def computed(self) -> int | None:
        """Prompt tokens that were not served from the cache, by the answer's counts; None without them."""
        if self.prompt_tokens is None or self.cached_tokens is None:
            return None
        return self.prompt_tokens - self.cached_tokens


@dataclass(slots=True, kw_only=True)
class Observation:
    """One request: where it stands in the plan, what was sent, what came back.

    `role`: warmup, screen, cold, cold2, seed, hit, show-cold, show-hit; decode, rescore, rescore2 (a clean
    prefill of a prompt and its answer); others are named by their probes. `cell` names the condition inside
    the probe; `kind` is suspect or control. `group` is one (prompt, length) in one attempt: a failed request
    ends it and the group starts again in a new namespace. `send` counts the sends of one namespace from 1.
    `expected_cached` is the prediction that makes a hit evidence; None where nothing is predicted.

    `visit` counts the starts of an arm's server from 1. `batch` names the request that this was a row of,
    `row` its place in it from 0, and `formed` what shows that the rows ran together (log, metrics, overlap).

    `shared`: so many tokens at the start stand in other namespaces too, as those are told apart by a salt in
    the prompt; a cold send may have them from the cache.

    By the server's load figures, `alone`: nothing else ran at the time, None where it does not say;
    `computed`: prompt tokens that were computed.
    """

    order: int
    arm: str
    probe: str
    role: str
    namespace: str
    length: int
    sent_at: float
    answer: Answer
    cell: str = ""
    kind: str = ""
    tail: int | None = None
    prompt: str = ""
    group: str = ""
    attempt: int = 0
    send: int = 1
    expected_cached: int | None = None
    expected_text: str = ""
    input_ids: list[int] = field(default_factory=list)
    max_new_tokens: int = 1
    alone: bool | None = None
    computed: int | None = None
    visit: int = 1
    temperature: float = 0.0
    batch: str = ""
    row: int = 0
    formed: str = ""
    shared: int = 0

    @property
    def tail_seen(self) -> int | None:
        """Tokens recomputed, by the server's own counts; None where it did not say."""
        return self.answer.computed

    @property
    def reached(self) -> bool:
        """The server's own count proves that the send took the path it names."""
        return self.expected_cached is not None and self.answer.cached_tokens == self.expected_cached


def to_json(observation: Observation) -> str:
    """One line without the newline."""
    data = {name: getattr(observation, name) for name in _FIELDS}
    data["answer"] = {name: getattr(observation.answer, name) for name in _ANSWER_FIELDS}
    return json.dumps({"schema": SCHEMA, **encoded(data)}, separators=(",", ":"), allow_nan=False)


def from_json(line: str) -> Observation:
    """The inverse of `to_json`; unknown keys of a newer minor version are ignored. Raises ValueError,
    KeyError."""
    data = json.loads(line)
    if not isinstance(data, dict):
        raise ValueError("no object")
    if data.get("schema") != SCHEMA:
        raise ValueError(f"schema {data.get('schema')!r}, this version reads {SCHEMA}")
    answer = {key: data["answer"][key] for key in _ANSWER_FIELDS if key in data["answer"]}
    answer["logprobs"] = [float(value) for value in answer["logprobs"]]
    answer["scored"] = [float(value) for value in answer.get("scored", ())]
    for key in ("top", "asked", "scored_top"):
        answer[key] = [[(int(i), float(value)) for i, value in row] for row in answer.get(key, ())]
    known = {key: data[key] for key in _FIELDS if key in data}
    return Observation(**{**known, "answer": Answer(**answer)})


class Recorder:
    """Appends observations to `path`, one flushed line each. Raises ResultsError when it cannot."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file: IO[str] = path.open("a", encoding="utf-8")
        except OSError as exc:
            raise ResultsError(
                f"cannot write {path}: {exc.strerror}", "give another --output folder"
            ) from exc

    def add(self, observation: Observation) -> None:
        self._file.write(to_json(observation) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def read(path: Path) -> list[Observation]:
    """All whole records of a file. A torn last line (a killed run) is left out; any other bad line is an
    error.

    Raises ResultsError naming the line.
    """
    with no_collection():
        return list(_lines(path))


def cut_torn_line(path: Path) -> None:
    """Drop an unfinished last line, so that appending after a kill never joins two records."""
    if not path.exists():
        return
    data = path.read_bytes()
    end = data.rfind(b"\n") + 1
    if end != len(data):
        with path.open("r+b") as file:
            file.truncate(end)


def encoded(value: Any) -> Any:
    """The same data with "nan", "inf" and "-inf" in place of the floats that JSON cannot carry."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: encoded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [encoded(item) for item in value]
    return value


def frame(observations: list[Observation]) -> "pd.DataFrame":
    """One row per observation, without the ids, rows and raw bodies."""
    import pandas as pd

    left_out = {"answer", "input_ids"}
    columns = [f for f in _FIELDS if f not in left_out]
    rows = [
        {
            **{name: getattr(obs, name) for name in columns},
            "status": obs.answer.status,
            "latency": obs.answer.latency,
            "prompt_tokens": obs.answer.prompt_tokens,
            "cached_tokens": obs.answer.cached_tokens,
            "tail_seen": obs.tail_seen,
            "reached": obs.reached,
            "values": obs.answer.values,
            "nonfinite": sum(obs.answer.faces.values()),
        }
        for obs in observations
    ]
    return pd.DataFrame(rows)


def _lines(path: Path) -> Iterator[Observation]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as exc:
        raise ResultsError(f"cannot read {path}: {exc.strerror}", "give the folder of a run") from exc
    *whole, torn = text.split("\n")
    for number, line in enumerate(whole, start=1):
        try:
            yield from_json(line)
        except (ValueError, KeyError, TypeError) as exc:
            raise ResultsError(f"{path} line {number} is not a record of this version: {exc}") from exc
    if torn:
        try:
            last = from_json(torn)
        except (ValueError, KeyError, TypeError):
            return
        yield last


_FIELDS = tuple(f.name for f in fields(Observation))
_ANSWER_FIELDS = tuple(f.name for f in fields(Answer))
