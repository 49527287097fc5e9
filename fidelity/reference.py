"""A trusted run to hold another one's cold answers against: kept in one file, read from it or from a run.

The file is JSONL: a header that says whose answers these are and how many follow, then one answer a line. It
holds ids, logprobs and texts, no raw body and nothing of how the server was reached.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

from fidelity import __version__
from fidelity import manifest as manifests
from fidelity.engines.facts import ServerFacts
from fidelity.errors import ResultsError
from fidelity.manifest import Manifest
from fidelity.observations import Answer, Observation, encoded, read
from fidelity.verdicts import PASS

SCHEMA = 1
COLD, SCORED = ("cold", "cold2"), ("rescore", "rescore2")
"""Roles of the answers: the first token of a prompt, and the scores of a generated answer; each twice, as
their difference is the reference's own noise."""

DRAFTED = "drafted"
"""Role of an answer that was decoded speculatively: how much of its draft was accepted."""

_ANSWER = ("text", "output_ids", "prompt_tokens", "cached_tokens", "logprobs", "top", "faces", "values")
_SCORES = ("scored", "scored_top")
_ERRORS = ("faces", "values")
_DRAFTS = ("output_ids", "spec")
_HINT = "give the folder of a run, or a file that --save-reference wrote"


@dataclass(frozen=True, kw_only=True)
class Source:
    """Whose answers these are. `judged` is the state of the arm they are of, in its own run; `prompts` are
    those it measured, in order."""

    engine: str
    version: str
    model: str
    simulated: bool
    vocab_size: int | None
    arm: str
    guard: str
    judged: str
    run_id: str
    started: str
    prompts: tuple[str, ...]

    def described(self) -> str:
        """One phrase for the reports."""
        server = f"{self.engine} {self.version}, {self.model}{' (simulated)' if self.simulated else ''}"
        guard = "" if self.guard == "none" else f" with guard {self.guard}"
        return f"{server}{guard}, run {self.run_id} of {self.started}, which it left as: {self.judged}"


@dataclass(frozen=True)
class Told:
    """One answer. `role` is of COLD: the answer has the first token's logprobs after `ids`; of SCORED: `ids`
    are a prompt and a generated answer, whose tokens' logprobs are `scored`; or DRAFTED: `ids` are a prompt,
    and the answer says by `spec` how much of the draft of its `output_ids` was accepted."""

    role: str
    prompt: str
    ids: tuple[int, ...]
    answer: Answer


@dataclass(frozen=True)
class Reference:
    """A trusted run, reduced to its cold answers."""

    source: Source
    told: tuple[Told, ...]


@lru_cache(maxsize=2)
def load(name: str) -> Reference:
    """The reference in a run's folder or in a saved file. Raises ResultsError."""
    path = Path(name)
    if path.is_dir():
        from fidelity.runner import OBSERVATIONS

        return of_run(manifests.load(path), read(path / OBSERVATIONS))
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        why = getattr(exc, "strerror", None) or "it is not text"
        raise ResultsError(f"cannot read the reference {name}: {why}", _HINT) from exc
    return _parse(text, path)


def of_run(manifest: Manifest, observations: Sequence[Observation]) -> Reference:
    """The cold answers of the first deciding arm that passes, else of the first. Raises ResultsError where it
    has none."""
    from fidelity.judge import judge  # which reads references itself

    verdict = judge(manifest, observations)
    deciding = [arm for arm in verdict.arms if not arm.baseline]
    arm = next((arm for arm in deciding if arm.state == PASS), deciding[0])
    record = manifest.arms.get(arm.name)
    told = tuple(_told([obs for obs in observations if obs.arm == arm.name]))
    if record is None or not record.facts or not told:
        raise ResultsError(f"the run {manifest.run_id} has no cold answers of arm {arm.name}", _HINT)
    facts = record.facts
    source = Source(
        engine=facts["engine"],
        version=facts["version"],
        model=facts["model"],
        simulated=facts["simulated"],
        vocab_size=facts["vocab_size"],
        arm=arm.name,
        guard=arm.guard,
        judged=arm.state,
        run_id=manifest.run_id,
        started=manifest.started,
        prompts=tuple(record.prompts),
    )
    return Reference(source, told)


def save(reference: Reference, path: Path) -> None:
    """Write the file whole or not at all. Raises ResultsError."""
    header = {"schema": SCHEMA, "answers": len(reference.told), "fidelity": __version__}
    lines = [{**header, **asdict(reference.source)}, *(_line(told) for told in reference.told)]
    part = path.with_name(path.name + ".part")
    try:
        with part.open("w", encoding="utf-8") as file:
            for line in lines:
                file.write(json.dumps(encoded(line), separators=(",", ":"), allow_nan=False) + "\n")
        part.replace(path)
    except OSError as exc:
        raise ResultsError(f"cannot write {path}: {exc.strerror}", "give another --save-reference") from exc


def check_writable(path: Path) -> None:
    """Raises ResultsError where a file could not be written at the end of the run."""
    if path.is_dir():
        raise ResultsError(f"{path} is a folder", "--save-reference names a file")
    if not path.parent.is_dir():
        raise ResultsError(f"there is no folder {path.parent}", "--save-reference names a file in one")


def other_model(model: str, vocab_size: int | None, facts: ServerFacts) -> str | None:
    """Why a reference's ids may mean other things to a server, None where model and vocabulary agree. Of a
    model's path its last part counts; a size of vocabulary that is not known is not compared."""
    if vocab_size is not None and facts.vocab_size is not None and vocab_size != facts.vocab_size:
        return f"the reference has a vocabulary of {vocab_size} ids, the server one of {facts.vocab_size}"
    names = [name.rstrip("/").rpartition("/")[2].lower() for name in (model, facts.model)]
    return None if names[0] == names[1] else f"the reference is of {model}, the server serves {facts.model}"


def _told(observations: Sequence[Observation]) -> Iterator[Told]:
    """The cold sends of resend, the scores of decode and what draft sent alone: of each group the last
    attempt, the same ids once in each role."""
    from fidelity.probes.decode import GREEDY, generated
    from fidelity.probes.draft import drafted

    groups: dict[tuple[str, int], dict[str, Observation]] = {}
    for obs in observations:
        if obs.probe == "resend" and obs.role in COLD and not obs.answer.failed:
            groups.setdefault((obs.group, obs.attempt), {})[obs.role] = obs
    found: dict[tuple[str, tuple[int, ...]], Told] = {}
    for roles in groups.values():
        if "cold" in roles:
            ids = tuple(roles["cold"].input_ids)
            for role, obs in roles.items():
                found[role, ids] = Told(role, obs.prompt, ids, obs.answer)
    for answer, roles, _ in generated([obs for obs in observations if obs.probe == "decode"], GREEDY):
        ids = (*answer.input_ids, *answer.answer.output_ids)
        for role in SCORED:
            if role in roles and not roles[role].answer.failed:
                found[role, ids] = Told(role, answer.prompt, ids, roles[role].answer)
    for ids, obs in drafted(observations).items():
        found[DRAFTED, ids] = Told(DRAFTED, obs.prompt, ids, obs.answer)
    yield from found.values()


def _line(told: Told) -> dict[str, Any]:
    names = _ANSWER if told.role in COLD else _DRAFTS if told.role == DRAFTED else (*_SCORES, *_ERRORS)
    kept = {name: value for name in names if (value := getattr(told.answer, name)) not in (None, [], {})}
    status = {} if told.answer.status == 200 else {"status": told.answer.status}
    return {"role": told.role, "prompt": told.prompt, "ids": told.ids, **status, **kept}


def _parse(text: str, path: Path) -> Reference:
    header, *lines = text.split("\n")
    try:
        data = json.loads(header)
        schema = data["schema"]
        if schema == SCHEMA:
            names = [field.name for field in fields(Source)]
            source = Source(**{**{name: data[name] for name in names}, "prompts": tuple(data["prompts"])})
            answers = int(data["answers"])
    except (ValueError, KeyError, TypeError) as exc:
        raise ResultsError(f"{path} is no reference: its first line is no header of one", _HINT) from exc
    if schema != SCHEMA:
        raise ResultsError(f"{path} is of schema {schema!r}, this version reads {SCHEMA}", _HINT)
    told = []
    for number, line in enumerate(lines[:-1], start=2):
        try:
            told.append(_read_line(line))
        except (ValueError, KeyError, TypeError) as exc:
            raise ResultsError(f"{path} line {number} is no answer of a reference: {exc}", _HINT) from exc
    if lines[-1:] != [""] or len(told) != answers:
        raise ResultsError(
            f"{path} is cut short: line {len(told) + 2} is torn or missing, {answers} answers are announced",
            "copy or save it again",
        )
    return Reference(source, tuple(told))


def _read_line(line: str) -> Told:
    data = json.loads(line)
    if data["role"] not in (*COLD, *SCORED, DRAFTED):
        raise ValueError(f"unknown role {data['role']!r}")
    answer = Answer(
        status=data.get("status", 200),
        latency=0.0,
        **{name: data[name] for name in (*_ANSWER, *_SCORES, "spec") if name in data},
    )
    answer.error = None if answer.status == 200 else f"HTTP {answer.status}"
    answer.logprobs = [float(value) for value in answer.logprobs]
    answer.scored = [float(value) for value in answer.scored]
    answer.top = [[(int(i), float(value)) for i, value in row] for row in answer.top]
    answer.scored_top = [[(int(i), float(value)) for i, value in row] for row in answer.scored_top]
    return Told(data["role"], data["prompt"], tuple(map(int, data["ids"])), answer)
