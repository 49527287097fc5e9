"""The requests of a reproduction sent to a live server, in a fresh namespace, and nothing else."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from fidelity import errors
from fidelity.engines.registry import named
from fidelity.engines.request import Request
from fidelity.errors import UnreachableError
from fidelity.observations import Answer, Observation
from fidelity.plan import Target
from fidelity.reproduce.case import KEY, Case
from fidelity.reproduce.choose import Reproduction
from fidelity.servers.attach import attach

REPRODUCED, GONE, NOT_TAKEN = "reproduced", "not reproduced", "path not taken"
EXIT = {REPRODUCED: errors.FAIL, GONE: errors.PASS, NOT_TAKEN: errors.INCONCLUSIVE}


@dataclass(frozen=True)
class Replay:
    """`sends` as they were answered now, in the order of the case's; `why` says what makes `state`."""

    sends: tuple[Observation, ...]
    state: str
    why: str


def replay(found: Reproduction, target: Target) -> Replay:
    """Send them all, one after the other. `target` says where and how, as that of an attached server. Raises
    UnreachableError, UsageError."""
    engine = named(found.engine)
    with attach(target) as server:

        def send(requests: tuple[Request, ...]) -> list[Answer]:
            if len(requests) == 1:
                return [engine.generate(server.client, requests[0])]
            return engine.generate_batch(server.client, requests)

        return again(found.case, send, target.url or "")


def again(case: Case, send: Callable[[tuple[Request, ...]], list[Answer]], url: str) -> Replay:
    """What the case's rule says of the answers that `send` gives now. Raises UnreachableError."""
    key = f"repro-{int(time.time())}-{os.urandom(4).hex()}"
    answers: list[Answer] = []
    for step in case.steps:
        requests = step.after(answers)
        fresh = tuple(replace(one, namespace=one.namespace.replace(KEY, key)) for one in requests)
        got = send(fresh)
        if got and got[0].status in (0, 401, 403):
            _refuse(got[0], url)
        lost = Answer(status=200, latency=0.0, error="fewer answers than requests")
        answers += [*got, *[lost] * (len(fresh) - len(got))][: len(fresh)]
    sends = []
    for then, now in zip(case.sends, answers, strict=True):
        grown = _length(then, now, case, answers)
        sends.append(replace(then, answer=now, length=grown))
    why = case.rule(sends)
    if why:
        return Replay(tuple(sends), REPRODUCED, why)
    for then, told in zip(case.sends, sends, strict=True):
        missed = _missed(then, told)
        if missed:
            return Replay(tuple(sends), NOT_TAKEN, f"{then.role}: {missed}")
    return Replay(tuple(sends), GONE, "the same path was taken, and its answers are right")


def _refuse(answer: Answer, url: str) -> None:
    if answer.status:
        raise UnreachableError(
            f"{url} refuses the request ({answer.status})",
            "set FIDELITY_API_KEY to the deployment's API key, or give its headers with --header-file",
        )
    raise UnreachableError(
        f"no answer from {url}: {answer.error}", "check the address, and that the server is up"
    )


def _length(then: Observation, now: Answer, case: Case, answers: list[Answer]) -> int:
    """A clean prefill of what was answered now is as long as that made it."""
    for step in case.steps:
        if step.scores is not None and step.sends[0] is then:
            return len(step.after(answers)[0].input_ids)
    return then.length


def _missed(then: Observation, now: Observation) -> str | None:
    """Why a send did not take the path of the recorded one."""
    if now.answer.failed:
        return f"the request failed: {now.answer.error}"
    if then.role == "seed" or then.role.startswith("rescore") or then.answer.cached_tokens is None:
        return None
    if now.answer.cached_tokens != then.answer.cached_tokens:
        return f"cached_tokens {now.answer.cached_tokens} instead of {then.answer.cached_tokens}"
    return None
