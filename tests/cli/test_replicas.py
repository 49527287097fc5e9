"""`fidelity check` of several replicas: one verdict each, a dead or slow one holds up nobody, and they are
held against each other."""

import socket
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import pytest

from .conftest import Done, run_command
from .embedded import served

SMALL = ("--probe", "resend", "--prompts", "3", "--tail", "1", "--control", "33", "--max-rate", "0.7")
QUICK = """
target: {profile: quiz-state}
resend: {warmup_sends: 2, warmup_tokens: 4}
"""


def name(url: str) -> str:
    return url.removeprefix("http://").replace(":", "-")


def check(folder: Path, *words: str) -> Done:
    (folder / "plan.yaml").write_text(QUICK)
    done = run_command(folder, "check", *words, *SMALL, "--config", "plan.yaml")
    assert "Traceback" not in done.out + done.err, done.err
    return done


@pytest.fixture
def deaf() -> Iterator[str]:
    """An address that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


@pytest.fixture
def dead() -> str:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return f"http://127.0.0.1:{taken.getsockname()[1]}"


def test_healthy_faulty_and_dead(tmp_path: Path, dead: str) -> None:
    with (
        served(tmp_path, profile="quiz-state") as healthy,
        served(tmp_path, profile="quiz-state", fault="split-k-nan") as faulty,
    ):
        done = check(tmp_path, dead, faulty, healthy)
    states = {arm["name"]: arm["state"] for arm in done.summary["arms"]}
    assert states == {name(dead): "could not run", name(faulty): "fail", name(healthy): "pass"}
    assert done.code == 10
    assert done.summary["reason"].startswith(f"arm {name(faulty)}:")
    assert "the other replicas go on" in done.out
    (compared,) = done.summary["comparisons"]
    # The fault is of hits: cold, the two say the same.
    assert compared["state"] == "pass", compared["reason"]
    suites = ET.parse(done.directory / "junit.xml").getroot()
    assert [suite.get("name") for suite in suites][:3] == [f"arm {one} (guard none)" for one in states]
    for one in states:
        assert one in done.out
        assert one in (done.directory / "report.md").read_text()


def test_a_dead_one_beside_a_healthy_one_could_not_run(tmp_path: Path, dead: str, deaf: str) -> None:
    (tmp_path / "urls").write_text(f"# ours\n{dead}  # down\n\n{deaf}\n")
    with served(tmp_path, profile="quiz-state") as healthy:
        done = check(tmp_path, healthy, "--urls-file", "urls", "--timeout", "5")
    states = {arm["name"]: arm["state"] for arm in done.summary["arms"]}
    assert states == {name(healthy): "pass", name(dead): "could not run", name(deaf): "could not run"}
    assert done.code == 3


def test_the_same_address_twice_and_none_are_refused(tmp_path: Path) -> None:
    twice = check(tmp_path, "http://127.0.0.1:9", "http://127.0.0.1:9/")
    assert (twice.code, "is given twice" in twice.err) == (2, True)
    none = check(tmp_path)
    assert (none.code, "--urls-file" in none.err) == (2, True)
    assert check(tmp_path, "--urls-file", "missing").code == 2
