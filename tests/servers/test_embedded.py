import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from fidelity.engines import sglang
from fidelity.errors import StartError
from fidelity.plan import Arm, Target
from fidelity.servers import embedded as module
from fidelity.servers.embedded import command, embedded
from fidelity.servers.running import last_lines


def test_the_command_line_says_all_that_the_plan_does() -> None:
    target = Target(fault="split-k", cu=32, noise=0.5, profile="random")
    words = command(target, Arm(name="a", guard="splitk"), port=5)
    assert words[:4] == [sys.executable, "-P", "-m", "fidelity.refserver"]
    options = dict(zip(words[4::2], words[5::2], strict=True))
    assert options == {
        "--port": "5",
        "--profile": "random",
        "--fault": "split-k",
        "--guard": "splitk",
        "--strategy": "extra_buffer",
        "--cu": "32",
        "--noise": "0.5",
        "--page-size": "64",
    }


@pytest.mark.parametrize(
    ("strategy", "page", "used"),
    [("extra_buffer", None, "64"), ("no_buffer", None, "1"), ("extra_buffer", 128, "128")],
)
def test_the_page_size_follows_the_strategy(strategy: str, page: int | None, used: str) -> None:
    target = Target.model_validate({"strategy": strategy, "page_size": page})
    words = command(target, Arm(name="a"))
    assert words[words.index("--page-size") + 1] == used


def test_it_starts_answers_and_ends(tmp_path: Path) -> None:
    target = Target(profile="random", fault="none")
    with embedded(target, Arm(name="a"), tmp_path / "server.log", seed=3) as server:
        assert server.owned
        assert server.died() is None
        facts = sglang.facts(server.client)
        assert facts.simulated
        assert facts.guards == ()
        assert facts.fault == "none"
        assert server.process is not None
    assert server.process.poll() is not None
    with pytest.raises(httpx.TransportError), httpx.Client(base_url=server.url) as client:
        client.get("/model_info")


def _instead(words: str) -> Callable[..., list[str]]:
    return lambda *_: [sys.executable, "-c", words]


def test_a_server_that_ends_at_once_is_told_with_its_last_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = "import sys; sys.stderr.write('one\\ntwo\\nno such profile\\n'); sys.exit(7)"
    monkeypatch.setattr(module, "command", _instead(script))
    with (
        pytest.raises(StartError, match=r"ended with code 7(.|\n)*no such profile"),
        embedded(Target(), Arm(name="a"), tmp_path / "server.log", seed=0),
    ):
        pass


def test_a_server_that_never_listens_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "command", _instead("import time; time.sleep(60)"))
    monkeypatch.setattr(module, "START_TIMEOUT", 0.2)
    with (
        pytest.raises(StartError, match="did not listen within"),
        embedded(Target(), Arm(name="a"), tmp_path / "server.log", seed=0),
    ):
        pass


def test_a_server_that_says_something_else_than_its_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        module, "command", _instead("print('hello', flush=True); import time; time.sleep(60)")
    )
    with (
        pytest.raises(StartError, match="hello"),
        embedded(Target(), Arm(name="a"), tmp_path / "server.log", seed=0),
    ):
        pass


def test_a_server_that_died_says_why(tmp_path: Path) -> None:
    target = Target(profile="random", fault="none")
    with embedded(target, Arm(name="a"), tmp_path / "server.log", seed=0) as server:
        assert server.process is not None
        server.process.kill()
        server.process.wait()
        assert (server.died() or "").startswith("the server ended with code -9")


def test_last_lines(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert last_lines(log) == ""
    assert last_lines(None) == ""
    log.write_text("".join(f"{n}\n" for n in range(9)), encoding="utf-8")
    assert last_lines(log, 2) == "; its last lines:\n  7\n  8"
    log.write_bytes(b"\xff\xfe broken\n")
    assert "broken" in last_lines(log)
