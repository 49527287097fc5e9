import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from fidelity.errors import PlanError, StartError
from fidelity.servers import ready
from fidelity.servers.port import free_port, is_free, port_for
from fidelity.servers.ready import cause, wait_until_ready
from fidelity.servers.running import RunningServer


def server(log: Path, answer: Callable[[httpx.Request], httpx.Response], **more: object) -> RunningServer:
    client = httpx.Client(base_url="http://host", transport=httpx.MockTransport(answer))
    return RunningServer("http://host", True, client, log, **more)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ready, "POLL", 0.0)


def test_each_new_line_of_the_log_is_told_until_it_is_ready(tmp_path: Path) -> None:
    log = tmp_path / "log"
    steps = iter([("", 0), ("one\n", 0), ("one\n", 503), ("one\ntwo\n\n", 503), ("one\ntwo\nthree", 200)])

    def answer(request: httpx.Request) -> httpx.Response:
        assert request.url.path == "/health_generate"
        text, status = next(steps)
        log.write_text(text)
        if not status:
            raise httpx.ConnectError("refused")
        return httpx.Response(status)

    assert list(wait_until_ready(server(log, answer), 60)) == ["one", "two"]


def test_what_it_last_answered_is_told(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"not ready within 0\.05 s, /health_generate last answered 503"):
        list(wait_until_ready(server(tmp_path / "log", lambda _: httpx.Response(503)), 0.05))


def test_one_that_ended_is_not_asked(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-S", "-c", "raise SystemExit(3)"], text=True)
    process.wait()
    ended = server(tmp_path / "log", lambda _: httpx.Response(200), process=process)
    with pytest.raises(StartError, match="the server ended with code 3"):
        list(wait_until_ready(ended, 5))


@pytest.mark.parametrize(
    ("line", "way"),
    [
        ("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.", "larger"),
        ("torch.OutOfMemoryError: CUDA out of memory.", "smaller"),
        ("[Errno 98] error while attempting to bind: address already in use", "run again"),
        ("OSError: x is not a local folder and is not a valid model identifier", "a preset's name"),
        ("RepositoryNotFoundError: 401 ... Repository Not Found for url", "HF_TOKEN"),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'a.json'", "the paths among"),
        (
            "Cannot connect to the Docker daemon at unix:///var/run/docker.sock",
            "the container runtime's daemon",
        ),
        ("ValueError: something else", "the whole log"),
    ],
)
def test_the_log_tells_what_to_do(line: str, way: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(f"before\n{line}\nafter\n")
    assert way in cause(log)
    assert str(log) in cause(log)


def test_without_a_log_there_is_still_a_way_on(tmp_path: Path) -> None:
    assert cause(None) == "see its log"
    assert "memory ran out" in cause(tmp_path / "none", 137)


def test_ports() -> None:
    port = free_port()
    assert is_free(port)
    assert port_for(("--port", str(port))) == port
    assert port_for(()) != 0
    for wrong in ("x", "0", "65536", ""):
        with pytest.raises(PlanError, match="is no port"):
            port_for(("--port", wrong))
