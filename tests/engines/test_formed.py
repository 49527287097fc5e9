"""What shows that the rows of one request ran together: the log, the load figures, nothing."""

import threading
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from fidelity.engines import formed
from fidelity.engines.formed import Formed, Witness
from fidelity.servers.running import RunningServer


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formed, "_PATIENCE", 0.2)
    monkeypatch.setattr(formed, "_PAUSE", 0.005)


def server(log: Path | None = None, running: Callable[[], int | None] = lambda: None) -> RunningServer:
    """One with a log is ours; without, somebody else's. `running` None has no load figures."""

    def handler(request: httpx.Request) -> httpx.Response:
        count = running()
        if count is None:
            return httpx.Response(404)
        return httpx.Response(200, json={"loads": [{"num_running_reqs": count, "num_waiting_reqs": 0}]})

    client = httpx.Client(transport=httpx.MockTransport(handler), base_url="http://fake")
    return RunningServer(url="http://fake", owned=log is not None, client=client, log=log)


def line(count: int) -> str:
    return f"[2026-01-01 TP0] Prefill batch, #new-seq: {count}, #new-token: {count}, #cached-token: 0, \n"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "server.log"
    path.write_text("starting\n" + line(1), encoding="utf-8")
    return path


def add(log: Path, text: str) -> None:
    with log.open("a", encoding="utf-8") as file:
        file.write(text)


@pytest.mark.parametrize(
    ("lines", "rows", "how"),
    [
        (line(4), 4, "log"),
        (line(1), 1, "log"),
        (line(1) + line(3), 4, "split 1+3"),
        (line(2) + "Decode batch, #running-req: 4\n" + line(2), 4, "split 2+2"),
        ("Decode batch, #running-req: 4\n", 4, "overlap"),
        ("Decode batch, #running-req: 1\n", 1, ""),
        (line(4).rstrip("\n"), 4, "overlap"),  # not a whole line yet
    ],
)
def test_the_log_tells_how_the_rows_ran(log: Path, lines: str, rows: int, how: str) -> None:
    with Witness(server(log)).watching(rows, rows) as told:
        add(log, lines)
        assert told() == Formed(how, None)


def test_what_the_log_said_before_is_not_looked_at(log: Path) -> None:
    add(log, line(4))
    with Witness(server(log)).watching(4, 4) as told:
        assert told().how == "overlap"


def test_a_line_may_trail_the_answer(log: Path) -> None:
    with Witness(server(log)).watching(3, 3) as told:
        late = threading.Timer(0.05, add, (log, line(3)))
        late.start()
        assert told().how == "log"
        late.join()


def wait_for(looks: list[int], count: int) -> None:
    waiting = threading.Event()
    for _ in range(400):
        if len(looks) >= count:
            return
        waiting.wait(0.005)
    raise AssertionError("nobody looked")


@pytest.mark.parametrize(
    ("seen", "how", "alone"),
    [([0, 2, 4, 4], "metrics", True), ([2, 2], "overlap", True), ([5], "overlap", False)],
)
def test_load_figures_tell_where_there_is_no_log(seen: list[int], how: str, alone: bool) -> None:
    looks: list[int] = []
    sending = False

    def running() -> int:
        if not sending:
            return 0
        looks.append(seen[min(len(looks), len(seen) - 1)])
        return looks[-1]

    with Witness(server(running=running)).watching(4, 4) as told:
        sending = True
        wait_for(looks, len(seen))
        sending = False
        assert told() == told() == Formed(how, alone)


def test_a_log_that_names_no_batches_gives_way_to_the_load_figures(log: Path) -> None:
    log.write_text("a server that logs warnings only\n", encoding="utf-8")
    looks: list[int] = []

    def running() -> int:
        looks.append(2)
        return 2

    with Witness(server(log, running)).watching(2, 2) as told:
        wait_for(looks, 1)
        assert told() == Formed("metrics", None)


def test_nothing_tells() -> None:
    with Witness(server()).watching(2, 2) as told:
        assert told() == Formed("untold", None)
    with Witness(server()).watching(1, 1) as told:
        assert told() == Formed("", None)


def test_an_answer_that_never_came_ends_the_looking() -> None:
    before = threading.active_count()
    with pytest.raises(RuntimeError), Witness(server(running=lambda: 0)).watching(2, 2):
        raise RuntimeError
    assert threading.active_count() == before
