"""Plan -> servers -> probes -> observations, as a stream of events. Knows no screen and no verdict."""

import itertools
import json
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path

from fidelity import fault_region, forecast, preflight
from fidelity.engines.facts import ServerFacts
from fidelity.engines.registry import engine_of, meet
from fidelity.errors import FidelityError, ServerError
from fidelity.events import (
    ArmDone,
    Event,
    RunEnded,
    Sent,
    ServerLog,
    ServerReady,
    ServerStarting,
    Warning,
)
from fidelity.guards.markers import read_markers
from fidelity.guards.registry import guard
from fidelity.manifest import ArmRecord, Manifest
from fidelity.observations import Observation, Recorder, cut_torn_line, read
from fidelity.plan import Arm, RunPlan
from fidelity.plan_probes import ProbeName
from fidelity.probes import grid, reference, warmup
from fidelity.probes.cells import choose_cells
from fidelity.probes.probing import Probing, StoppedAtProofError
from fidelity.probes.registry import PROBES
from fidelity.probes.session import Budget, OutOfRequestsError, OutOfTimeError, Session
from fidelity.prompting import PromptSource, open_prompts
from fidelity.servers.choose import server_for
from fidelity.servers.guarded import prove as prove_guard
from fidelity.servers.ready import wait_until_ready
from fidelity.servers.running import RunningServer

OBSERVATIONS = "observations.jsonl"


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
        for arm, visit in visits(manifest.plan):
            yield from _run_replica(work, arm, visit)
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


def visits(plan: RunPlan) -> list[tuple[Arm, int]]:
    """The arms in the order in which their servers are started: A B, and B A again where a probe needs each
    arm twice, so that what drifts over the run falls on both alike."""
    first = [(arm, 1) for arm in plan.arms]
    return first + [(arm, 2) for arm in reversed(plan.arms) if _probes(plan, 2)]


def _probes(plan: RunPlan, visit: int) -> list[ProbeName]:
    """The probes of the n-th start of an arm's server. A running server is not ours to start again."""
    if visit > 1 and plan.target.kind == "attach":
        return []
    return [name for name in plan.selected if PROBES[name].visits >= visit]


def _run_replica(work: Run, arm: Arm, visit: int) -> Iterator[Event]:
    """Run an arm; one of several replicas within its share of the time, and what ends it ends it alone."""
    whole = work.deadline
    if not work.plan.replicated:
        yield from _run_arm(work, arm, visit)
        return
    record = _record(work, arm)
    record.error = record.unfinished = ""
    if whole is not None:
        now, waiting = time.monotonic(), len(work.plan.arms) - work.plan.arms.index(arm)
        work.deadline = now + (whole - now) / waiting
    try:
        yield from _run_arm(work, arm, visit)
    except ServerError as exc:
        record.error = exc.message
    except OutOfTimeError:
        if whole is None or time.monotonic() >= whole:
            raise
        record.unfinished = "its share of the minutes of the plan is over"
    finally:
        work.deadline = whole
    if record.error or record.unfinished:
        if work.prompts is not None and not work.prompts.settled:
            # The next one chooses anew: what a server that fails was sure of is no choice.
            work.prompts = None
        message = f"{record.error or record.unfinished}; the other replicas go on"
        record.warnings.append(message)
        work.save()
        yield Warning(arm.name, message)


def _record(work: Run, arm: Arm) -> ArmRecord:
    return work.manifest.arms.setdefault(arm.name, ArmRecord(arm.guard, guard(arm.guard).min_tail))


def _run_arm(work: Run, arm: Arm, visit: int) -> Iterator[Event]:
    plan = work.plan
    started = time.monotonic()
    record = _record(work, arm)
    if visit == 1:
        record.warnings = []
    yield ServerStarting(arm.name, plan.target_of(arm).url or plan.target.model)
    with _server(work, arm) as server:
        record.image = server.image
        if plan.target.kind in ("process", "container"):
            for line in wait_until_ready(server, plan.target.start_timeout):
                yield ServerLog(arm.name, line)
        facts = meet(server.client, plan.target.api)
        preflight.prove(plan, arm, facts)
        facts = preflight.learn_vocabulary(server, facts, work.budget)
        facts = preflight.learn_habits(
            plan, server, facts, f"{work.manifest.run_id}.{work.manifest.starts}", work.budget
        )
        reference.prove(plan, facts)
        _prove_guard(arm, server, facts, record, suspects_ran=False)
        facts = fault_region.learn(plan.target, facts)
        prompts = open_prompts(plan, server.client, engine_of(facts), work.prompts)
        work.prompts = prompts
        prompts.raised_top_k = facts.raised_top_k
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
            visit=visit,
        )
        if preflight.seeks_grid(facts):
            facts = session.facts = grid.learned(facts, grid.find(session, prompts.tokenizer))
        cells = choose_cells(plan.resend, facts)
        record.facts = {key: value for key, value in asdict(facts).items() if key != "raw"}
        (work.directory / f"server-{arm.name}.json").write_text(json.dumps(facts.raw, indent=1), "utf-8")
        record.cells, record.tokenizer = cells, prompts.tokenizer.source
        work.save()
        at = Probing(
            plan=plan,
            session=session,
            record=record,
            prompts=prompts,
            cells=cells,
            visit=visit,
            decides=not arm.baseline,
            batches=session.batches,
            earlier=[obs for obs in work.earlier if obs.arm == arm.name and obs.visit == visit],
        )
        seconds = time.monotonic() - started
        yield ServerReady(arm.name, facts, tuple(cells), _requests(work, at), seconds)
        knows_ids = preflight.knows_ids(facts, session.vocab_size)
        for message in preflight.warnings(plan, server, facts, cells, knows_ids=knows_ids):
            yield at.warn(message)
        yield from map(Sent, warmup.warm_up(session, prompts.samples(cells), plan.resend))
        for name in _probes(plan, visit):
            unfit = PROBES[name].inapplicable(plan, facts, at.batches)
            if unfit is not None:
                record.skipped[name] = unfit
                yield at.warn(f"{name} not applicable: {unfit}")
            else:
                yield from PROBES[name].run(at)
        for message in _prove_guard(arm, server, facts, record, suspects_ran=True):
            yield at.warn(message)
    record.seconds = round(record.seconds + time.monotonic() - started, 2)
    work.save()
    yield ArmDone(arm.name, record.seconds)


def _server(work: Run, arm: Arm) -> AbstractContextManager[RunningServer]:
    return server_for(work.plan.target_of(arm), arm, work.directory, work.manifest.run_id, work.plan.seed)


def _prove_guard(
    arm: Arm, server: RunningServer, facts: ServerFacts, record: ArmRecord, *, suspects_ran: bool
) -> tuple[str, ...]:
    """Warnings of a server that we started with (or without) a guard. Raises NotWhatWasAskedError."""
    if server.markers is None:
        return ()
    told = read_markers(server.markers)
    record.markers = [marker.line() for marker in told]
    return prove_guard(guard(arm.guard), told, facts.raw, suspects_ran=suspects_ran)


def _requests(work: Run, at: Probing) -> int:
    screens = not (work.prompts and work.prompts.settled)
    parts = forecast.parts(
        work.plan,
        at.facts,
        at.cells,
        at.record.min_tail,
        batches=at.batches,
        screens=screens,
        probes=_probes(work.plan, at.visit),
    )
    return sum(part.requests for part in parts)
