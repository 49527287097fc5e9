"""A reproduction as a script for a shell: what is sent as `curl` lines, all else as comments.

Every body stands in single quotes with `"$KEY"` outside of them: its JSON holds no single quote.
"""

import json
import shlex
from collections.abc import Iterator

from fidelity.engines.registry import named
from fidelity.plan import Target
from fidelity.probes.patterns import PATTERNS
from fidelity.report.words import quoted, readable
from fidelity.reproduce import words
from fidelity.reproduce.case import KEY, Step
from fidelity.reproduce.choose import Reproduction
from fidelity.reproduce.failing import cell_name
from fidelity.servers.credentials import KEY_VARIABLE

LOCAL = "http://127.0.0.1:30000"
"""Where a server is taken to listen that was started here and is gone."""


_CHATS = tuple(pattern.name for pattern in PATTERNS if pattern.chat)


def url_of(target: Target) -> str:
    """The address of the run's server."""
    return target.url or LOCAL if target.kind == "attach" else LOCAL


def script(found: Reproduction, server: str, replay: str) -> str:
    """The whole text, which ends in a newline. `server`: the command that starts its server, empty where
    nothing is started; `replay`: the command that sends the same."""
    return "\n".join([*_head(found, server), *_requests(found), *_foot(found, replay)]) + "\n"


def _head(found: Reproduction, server: str) -> Iterator[str]:
    cell, case = found.cell, found.case
    yield f"# {readable(f'{cell_name(cell)}, arm {cell.arm}: {cell.state}: {cell.reason}')}"
    yield f"# {readable(found.label)}"
    answer = next((send.expected_text for send in case.sends if send.prompt == case.prompt), "")
    known = f", known answer {quoted(answer)}" if answer else ""
    count = len(case.steps)
    requests = f"{count} request{'s' if count > 1 else ''}"
    yield f"# run {found.run_id}, prompt {readable(case.prompt)}{known}: {requests}, one after the other"
    if cell.probe == "impact" and cell.name in _CHATS:
        yield "# the run sent a chat with tools: these are the ids that its template makes of it"
    if found.target.kind != "attach":
        yield "# the server (after its first few requests: fresh memory can hide a fault):"
        yield f"#   {readable(server)}"
    elif found.target.header_file or found.target.ca_file:
        yield "# headers and certificates: the files that the run was given"
    yield "# a prefix-cache namespace that nothing was sent to yet:"
    yield "KEY=repro-$(date +%s)-$RANDOM"


def _requests(found: Reproduction) -> Iterator[str]:
    case, near_tie = found.case, found.near_tie
    sends = case.sends
    for number, step in enumerate(case.steps, start=1):
        yield ""
        yield f"# {number}. {readable(words.title(step.sends))}"
        for send in step.sends:
            row = f" row {send.row + 1} ({readable(send.prompt)})" if len(step.sends) > 1 else ""
            right = words.expected(send, sends, near_tie, case.trusted)
            if right:
                yield f"# expect{row}: {right}"
            yield f"# seen{row}:   {words.seen(send, sends, near_tie, case.trusted)}"
        yield _curl(found, step)


def _foot(found: Reproduction, replay: str) -> Iterator[str]:
    yield ""
    yield f"# why it is corrupt: {readable(found.case.why)}"
    yield f"# send the same, and compare: {readable(replay)}"


def _curl(found: Reproduction, step: Step) -> str:
    target = found.target
    path, body = named(found.engine).call(step.requests, single=len(step.requests) == 1)
    text = json.dumps(body, separators=(",", ":")).replace("'", "\\u0027")
    text = text.replace(KEY, "'\"" + KEY + "\"'")
    words_ = ["curl", "-sS", "-w", r"'\n'", shlex.quote(f"{url_of(target)}{path}"), *_access(target)]
    return " ".join([*words_, "-H", "'Content-Type: application/json'", "-d", f"'{text}'"])


def _access(target: Target) -> Iterator[str]:
    """What lets us into the deployment. The key itself is in no record; without one, its word is none."""
    if target.kind != "attach":
        return
    yield f'${{{KEY_VARIABLE}:+-H"Authorization: Bearer ${KEY_VARIABLE}"}}'
    if target.header_file:
        yield from ("-H", shlex.quote(f"@{target.header_file}"))
    if target.ca_file:
        yield from ("--cacert", shlex.quote(str(target.ca_file)))
