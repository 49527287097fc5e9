"""Plan -> servers -> probes -> observations, as a stream of events. Knows no screen and no verdict."""

import itertools
import json
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path

from fidelity import fault_region, forecast, preflight
from fidelity.engines import sglang
from fidelity.engines.facts import ServerFacts
from fidelity.errors import FidelityError
from fidelity.events import (
    ArmDone,
    Corruption,
    Event,
    RunEnded,
    Sent,
    ServerLog,
    ServerReady,
    ServerStarting,
    Skipped,
    Warning,
)
from fidelity.guards.markers import read_markers
from fidelity.guards.registry import guard
from fidelity.manifest import ArmRecord, Manifest
from fidelity.observations import Observation, Recorder, cut_torn_line, read
from fidelity.plan import Arm, RunPlan
from fidelity.probes import resend, warmup
from fidelity.probes.cells import Cell, choose_cells, plan_hit
from fidelity.probes.session import (
    Budget,
    FailedRequestError,
    OutOfRequestsError,
    OutOfTimeError,
    Session,
)
from fidelity.prompting import PromptSource, open_prompts, shuffled_cells
from fidelity.servers.choose import server_for
from fidelity.servers.guarded import prove as prove_guard
from fidelity.servers.ready import wait_until_ready
from fidelity.servers.running import RunningServer

OBSERVATIONS = "observations.jsonl"


class StoppedAtProofError(Exception):
    """--fail-fast: the first corrupt hit is recorded."""


@dataclass
class Run:
    """A run directory at work. `earlier` are the observations it already held."""

    manifest: Manifest
    directory: Path
    recorder: Recorder
    next_order: Callable[[], int]
    deadline: float | None
    budget: Budget
    earlier: list[Observation] = field(default_factory=list)
    prompts: PromptSource | None = None

    @property
    def plan(self) -> RunPlan:
        return self.manifest.plan

    def save(self) -> None:
        self.manifest.save(self.directory)


def run(manifest: Manifest, directory: Path) -> Generator[Event, None, None]:
    """Run (or go on with) the plan of `manifest` in `directory`; the last event is RunEnded, whatever
    happens.

    What was recorded stays on disk in every case. Raises ResultsError only before the first request.
    """
    path = directory / OBSERVATIONS
    cut_torn_line(path)
    earlier = read(path) if path.exists() else []
    recorder = Recorder(path)
    minutes = manifest.plan.max_minutes
    work = Run(
        manifest=manifest,
        directory=directory,
        recorder=recorder,
        next_order=itertools.count(len(earlier)).__next__,
        deadline=time.monotonic() + minutes * 60 if minutes else None,
        budget=Budget(manifest.plan.max_requests),
        earlier=earlier,
    )
    manifest.status, manifest.error, manifest.exit_code = "running", None, None
    manifest.starts += 1
    work.save()
    end = RunEnded("complete")
    try:
        for arm in manifest.plan.arms:
            yield from _run_arm(work, arm)
    except OutOfTimeError:
        end = RunEnded("out of time", f"the {minutes:g} minutes of the plan are over")
    except OutOfRequestsError:
        end = RunEnded("out of requests", f"the {manifest.plan.max_requests} requests of the plan are sent")
    except StoppedAtProofError:
        end = RunEnded("stopped at the first proof")
    except KeyboardInterrupt:
        end = RunEnded("interrupted", "interrupted", "`fidelity run --resume FOLDER` goes on from there")
    except FidelityError as exc:
        end = RunEnded("failed", exc.message, exc.hint)
        manifest.exit_code = exc.exit_code
    finally:
        recorder.close()
    manifest.status, manifest.error = end.status, end.error
    work.save()
    yield end


def _run_arm(work: Run, arm: Arm) -> Iterator[Event]:
    plan = work.plan
    started = time.monotonic()
    record = work.manifest.arms.setdefault(arm.name, ArmRecord(arm.guard, guard(arm.guard).min_tail))
    record.warnings = []
    yield ServerStarting(arm.name, plan.target.url or plan.target.model)
    with _server(work, arm) as server:
        record.image = server.image
        if plan.target.kind in ("process", "container"):
            for line in wait_until_ready(server, plan.target.start_timeout):
                yield ServerLog(arm.name, line)
        facts = sglang.facts(server.client)
        preflight.prove(plan, arm, facts)
        facts = preflight.learn_vocabulary(server, facts, work.budget)
        _prove_guard(arm, server, facts, record, suspects_ran=False)
        facts = fault_region.learn(plan.target, facts)
        cells = choose_cells(plan.resend, facts)
        prompts = work.prompts or open_prompts(plan, server.client)
        work.prompts = prompts
        record.facts = {key: value for key, value in asdict(facts).items() if key != "raw"}
        (work.directory / f"server-{arm.name}.json").write_text(json.dumps(facts.raw, indent=1), "utf-8")
        record.cells, record.tokenizer = cells, prompts.tokenizer.source
        work.save()
        session = Session(
            arm=arm.name,
            # A request in flight when the run was killed is in the server's cache and in no record.
            run_id=f"{work.manifest.run_id}.{work.manifest.starts}",
            server=server,
            facts=facts,
            recorder=work.recorder,
            next_order=work.next_order,
            vocab_size=facts.vocab_size or prompts.tokenizer.vocab_size,
            deadline=work.deadline,
            budget=work.budget,
            decode=cache(prompts.tokenizer.decode),
            batches=preflight.may_load(plan, server),
        )
        yield ServerReady(
            arm.name,
            facts,
            tuple(cells),
            _requests(work, session, record, cells),
            time.monotonic() - started,
        )
        knows_ids = session.vocab_size is not None
        for message in preflight.warnings(plan, server, facts, cells, knows_ids=knows_ids):
            record.warnings.append(message)
            yield Warning(arm.name, message)
        yield from map(Sent, warmup.warm_up(session, prompts.samples(cells), plan.resend))
        yield from _measure(work, session, record, cells)
        for message in _prove_guard(arm, server, facts, record, suspects_ran=True):
            yield _warn(record, arm.name, message)
    record.seconds = round(record.seconds + time.monotonic() - started, 2)
    work.save()
    yield ArmDone(arm.name, record.seconds)


def _measure(work: Run, session: Session, record: ArmRecord, cells: list[Cell]) -> Iterator[Event]:
    plan = work.plan
    prompts = work.prompts
    if prompts is None:
        return
    mine = [obs for obs in work.earlier if obs.arm == session.arm]
    for entry in prompts.accepted():
        yield from _measure_prompt(work, session, record, cells, entry.id, mine)
    if prompts.settled:
        record.prompts = [entry.id for entry in prompts.taken]
        return
    for entry in prompts.candidates(cells):
        screened = next((obs for obs in mine if obs.role == "screen" and obs.prompt == entry.id), None)
        if screened is None:
            try:
                # At the longest: a fault that cold shares at a suspect length must not choose the prompts.
                group = _group(work, session, record, cells[-1], entry.id, mine)
                screened = resend.screen(session, group)
                yield Sent(screened)
            except FailedRequestError as exc:
                yield _warn(record, session.arm, f"{entry.id} could not be screened: {exc}")
        if prompts.admit(entry, screened, plan.thresholds.sure):
            yield from _measure_prompt(work, session, record, cells, entry.id, mine)
    for entry in prompts.take_unsure():
        record.unsure = True
        yield from _measure_prompt(work, session, record, cells, entry.id, mine)
    record.prompts = [entry.id for entry in prompts.taken]
    record.replaced = list(prompts.replaced)
    prompts.settled = True


def _measure_prompt(
    work: Run, session: Session, record: ArmRecord, cells: list[Cell], prompt: str, mine: list[Observation]
) -> Iterator[Event]:
    for cell in shuffled_cells(work.plan, cells, prompt):
        group = _group(work, session, record, cell, prompt, mine)
        last = [obs for obs in mine if obs.group == group.key and obs.attempt == group.attempt - 1]
        if resend.complete(last, work.plan.resend):
            yield Skipped(session.arm, resend.sends_per_group(group.how, work.plan.resend))
            continue
        for attempt in range(group.attempt, group.attempt + work.plan.resend.attempts):
            try:
                yield from _measure_group(work, session, record, _with_attempt(group, attempt))
                break
            except FailedRequestError as exc:
                yield _warn(record, session.arm, f"{group.key}: a request failed, started again: {exc}")


def _measure_group(work: Run, session: Session, record: ArmRecord, group: resend.Group) -> Iterator[Event]:
    plan = work.plan
    # A baseline arm decides nothing: stopping there would leave the others unmeasured.
    decides = any(arm.name == session.arm and not arm.baseline for arm in plan.arms)
    sends = resend.run_group(session, group, plan.resend, record.min_tail, plan.thresholds.near_tie)
    for what in sends:
        if isinstance(what, Corruption):
            yield what
            if plan.fail_fast and decides:
                raise StoppedAtProofError
        else:
            yield Sent(what)


def _group(
    work: Run, session: Session, record: ArmRecord, cell: Cell, prompt: str, mine: list[Observation]
) -> resend.Group:
    assert work.prompts is not None
    fitted = work.prompts.fit(prompt, cell.length)
    how = plan_hit(cell, session.facts, record.min_tail)
    top_k = work.prompts.top_k(prompt, work.plan.thresholds.slack)
    group = resend.Group(prompt, fitted.answer, fitted.ids, cell, how, top_k)
    attempts = [obs.attempt for obs in mine if obs.group == group.key and obs.role != "screen"]
    return _with_attempt(group, max(attempts, default=-1) + 1)


def _with_attempt(group: resend.Group, attempt: int) -> resend.Group:
    return replace(group, attempt=attempt)


def _server(work: Run, arm: Arm) -> AbstractContextManager[RunningServer]:
    return server_for(work.plan.target, arm, work.directory, work.manifest.run_id, work.plan.seed)


def _prove_guard(
    arm: Arm, server: RunningServer, facts: ServerFacts, record: ArmRecord, *, suspects_ran: bool
) -> tuple[str, ...]:
    """Warnings of a server that we started with (or without) a guard. Raises NotWhatWasAskedError."""
    if server.markers is None:
        return ()
    told = read_markers(server.markers)
    record.markers = [marker.line() for marker in told]
    return prove_guard(guard(arm.guard), told, facts.raw, suspects_ran=suspects_ran)


def _warn(record: ArmRecord, arm: str, message: str) -> Warning:
    record.warnings.append(message)
    return Warning(arm, message)


def _requests(work: Run, session: Session, record: ArmRecord, cells: list[Cell]) -> int:
    screens = not (work.prompts and work.prompts.settled)
    parts = forecast.parts(
        work.plan, session.facts, cells, record.min_tail, batches=session.batches, screens=screens
    )
    return sum(part.requests for part in parts)
