"""`fidelity reproduce`: from parsed flags to an exit code."""

import sys
from pathlib import Path

from fidelity import errors
from fidelity import manifest as manifests
from fidelity.errors import ResultsError
from fidelity.judge import judge
from fidelity.manifest import Manifest
from fidelity.observations import read
from fidelity.plan import Target
from fidelity.report.words import readable
from fidelity.reproduce import words
from fidelity.reproduce.choose import Reproduction, find_cell, reproduction
from fidelity.reproduce.failing import cell_name, command
from fidelity.reproduce.replay import EXIT, REPRODUCED, Replay, replay
from fidelity.reproduce.server import server_command
from fidelity.reproduce.shell import script, url_of
from fidelity.runner import OBSERVATIONS
from fidelity.verdicts import FAIL


def reproduce(
    directory: Path,
    cell: str | None,
    arm: str | None,
    url: str | None,
    header_file: Path | None,
    ca_file: Path | None,
) -> int:
    """Print the script of a failing cell, or with `url` send the same there. Returns the exit code: without
    `url` 0. Raises FidelityError."""
    manifest = manifests.load(directory)
    observations = read(directory / OBSERVATIONS)
    verdict = judge(manifest, observations)
    chosen = find_cell(verdict, cell, arm)
    if chosen is None:
        where = "" if arm is None else f" of arm {arm}"
        _say(f"no failing cell{where}, so nothing to reproduce: the run's verdict is {verdict.state}")
        return errors.PASS
    if chosen.state != FAIL:
        _say(f"{cell_name(chosen)}, arm {chosen.arm}: {chosen.state}, so nothing to reproduce")
        return errors.PASS
    found = reproduction(chosen, manifest, verdict.label, observations)
    if found is None:
        raise ResultsError(
            f"{cell_name(chosen)}, arm {chosen.arm}: the record holds no request that shows it by itself "
            f"({readable(chosen.reason)})",
            "repeat the run: report.md names its command",
        )
    if url is None:
        sys.stdout.write(text_of(found, manifest, directory, command(directory, chosen, verdict), look=True))
        return errors.PASS
    target = _target(manifest.plan.target, url, header_file, ca_file)
    told = replay(found, target)
    _compare(found, told)
    return EXIT[told.state]


def text_of(
    found: Reproduction, manifest: Manifest, directory: Path, printed_by: str, *, look: bool = False
) -> str:
    """The script, with what starts its server and what sends it again. `look` as in `server_command`."""
    server = server_command(manifest, found.cell.arm, directory, look=look)
    return script(found, server, f"{printed_by} --replay {url_of(found.target)}")


def _target(own: Target, url: str, header_file: Path | None, ca_file: Path | None) -> Target:
    """The server at `url`, reached with the run's own files unless others are given."""
    return Target(
        kind="attach",
        url=url,
        header_file=header_file or own.header_file,
        ca_file=ca_file or own.ca_file,
        rate=own.rate,
        timeout=own.timeout,
    )


def _compare(found: Reproduction, told: Replay) -> None:
    """Each send: what it should answer, what it answered then, and now."""
    then, now, trusted = found.case.sends, told.sends, found.case.trusted
    _say(f"{cell_name(found.cell)}, arm {found.cell.arm}: {found.cell.reason}")
    for before, after in zip(then, now, strict=True):
        _say(f"{words.title([before])}, {before.prompt}")
        right = words.expected(before, then, found.near_tie, trusted)
        if right:
            _say(f"  expected: {right}")
        _say(f"  then:     {words.seen(before, then, found.near_tie, trusted)}")
        _say(f"  now:      {words.seen(after, now, found.near_tie, trusted)}")
    if told.state == REPRODUCED:
        _say(f"REPRODUCED: {told.why}")
    else:
        _say(f"{told.state.upper()}: {told.why}; then: {found.case.why}")


def _say(line: str) -> None:
    sys.stdout.write(readable(line) + "\n")
