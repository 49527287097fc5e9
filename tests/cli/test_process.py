"""`fidelity run` with a local sglang: launch line, wait, proof, end, and what can go wrong."""

import json
import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from fidelity.guards import apply
from fidelity.guards.registry import Guard, guard
from fidelity.servers import ready

from .conftest import COMMAND, Here, environment
from .fake_sglang import all_gone, make_model, make_python, processes_of, said, wait_for

QUICK = ("--prompts", "1", "--hits", "1", "--fail-fast", "--tail", "1", "--control", "2")


@pytest.fixture(autouse=True)
def _poll_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ready, "POLL", 0.05)


def words(folder: Path, python: Path, *more: str) -> list[str]:
    return ["run", "--model", str(make_model(folder)), "--python", str(python), *more]


class TestARun:
    def test_it_starts_tests_and_ends_the_server(self, tmp_path: Path, here: Here) -> None:
        python = make_python(tmp_path, lines=["Load weight begin.", "[bold]half\x1b[31m a tag"])
        done = here(*words(tmp_path, python, *QUICK, "--", "--tp", "2", "--page-size=64"))
        assert done.code == 10, done.out
        assert all_gone(tmp_path)
        told = said(tmp_path)
        assert told["options"]["model_path"] == str(tmp_path / "model")
        assert told["options"]["tensor_parallel_size"] == 2
        assert told["options"]["host"] == "127.0.0.1"
        log = (done.directory / "server-none.log").read_text()
        assert "server_args=ServerArgs" in log
        assert "arm none: starting: " in done.out
        assert "\x1b" not in done.out
        manifest = json.loads((done.directory / "manifest.json").read_text())
        assert manifest["plan"]["target"]["flags"] == ["--tp", "2", "--page-size=64"]
        assert manifest["arms"]["none"]["image"] is None
        assert manifest["arms"]["none"]["markers"] == []

    def test_a_guard_proves_itself_in_the_scheduler(self, tmp_path: Path, here: Here) -> None:
        python = make_python(tmp_path)
        done = here(
            *words(tmp_path, python, "--guard", "ksplit1", "--prompts", "2", "--hits", "1", *QUICK[4:])
        )
        assert done.code in (0, 11), done.out + done.err
        assert all_gone(tmp_path)
        record = json.loads((done.directory / "manifest.json").read_text())["arms"]["ksplit1"]
        (marker,) = record["markers"]
        assert marker.startswith("scheduler pid ")
        assert "AITER_KSPLIT=1" in marker
        assert marker in (done.directory / "report.md").read_text()
        assert str(done.directory / "guard") in said(tmp_path)["path"]


class TestTheEnd:
    """However the command ends, no process of the server is left."""

    @staticmethod
    def start(folder: Path, python: Path) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [COMMAND, *words(folder, python), "--output", str(folder / "run"), "--prompts", "4"],
            cwd=folder,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_interrupted_while_it_loads(self, tmp_path: Path, number: int) -> None:
        process = self.start(tmp_path, make_python(tmp_path, **{"never ready": True}))
        wait_for(tmp_path / "run" / "server-none.log", 1, process)
        assert len(processes_of(tmp_path)) >= 2
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 130, out + err
        assert "Traceback" not in out + err
        assert all_gone(tmp_path)

    def test_killed_in_the_middle(self, tmp_path: Path) -> None:
        process = self.start(tmp_path, make_python(tmp_path, random=True))
        wait_for(tmp_path / "run" / "observations.jsonl", 10, process)
        assert len(processes_of(tmp_path)) >= 4
        process.kill()
        process.communicate()
        assert all_gone(tmp_path)


class TestWhatCanGoWrong:
    """Each is one message with the way on, exit 3 or 2, no traceback, no process left."""

    def fails(self, folder: Path, here: Here, python: Path, *more: str, code: int = 3) -> str:
        done = here(*words(folder, python, *more))
        assert done.code == code, done.out + done.err
        assert all_gone(folder)
        return done.out + done.err

    def test_no_sglang(self, tmp_path: Path, here: Here) -> None:
        done = here(*words(tmp_path, Path("/bin/false")))
        assert done.code == 3
        assert "sglang is not installed in /bin/false" in done.out
        for way in ("--python", "--image", "--url", "--model embedded"):
            assert way in done.out

    def test_the_port_is_taken(self, tmp_path: Path, here: Here) -> None:
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            port = str(other.getsockname()[1])
            out = self.fails(tmp_path, here, make_python(tmp_path), "--", "--port", port)
        assert f"port {port} is taken by another process" in out
        assert "leave out --port" in out

    def test_the_model_is_not_there(self, tmp_path: Path, here: Here) -> None:
        done = here("run", "--model", "/no/such/model", "--python", str(make_python(tmp_path)))
        assert done.code == 2
        assert "there is no model folder /no/such/model" in done.out
        assert "check --model" in done.out

    def test_it_dies_at_load(self, tmp_path: Path, here: Here) -> None:
        lines = ["Traceback (most recent call last):", "ValueError: Unsupported architecture: Foo"]
        out = self.fails(tmp_path, here, make_python(tmp_path, lines=lines, exit=1))
        assert "the server ended with code 1; its last lines:" in out
        assert "ValueError: Unsupported architecture: Foo" in out
        assert f"the whole log: {tmp_path / 'run' / 'server-none.log'}" in out

    def test_out_of_gpu_memory(self, tmp_path: Path, here: Here) -> None:
        lines = ["torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB."]
        out = self.fails(tmp_path, here, make_python(tmp_path, lines=lines, exit=1))
        assert "HIP out of memory" in out
        assert "smaller --mem-fraction-static" in out

    def test_killed_by_the_system(self, tmp_path: Path, here: Here) -> None:
        out = self.fails(tmp_path, here, make_python(tmp_path, killed=True))
        assert "the server ended with code 137" in out
        assert "memory ran out" in out

    def test_never_ready(self, tmp_path: Path, here: Here) -> None:
        python = make_python(tmp_path, lines=["Capture cuda graph begin."], **{"never ready": True})
        out = self.fails(tmp_path, here, python, "--start-timeout", "2")
        assert "the server was not ready within 2 s" in out
        assert "Capture cuda graph begin." in out
        assert "raise --start-timeout" in out

    def test_a_flag_it_does_not_have(self, tmp_path: Path, here: Here) -> None:
        out = self.fails(tmp_path, here, make_python(tmp_path), "--", "--no-such-flag", "1")
        assert "unrecognized arguments: --no-such-flag" in out
        assert "see its --help" in out

    def test_it_dies_in_the_middle(self, tmp_path: Path, here: Here) -> None:
        python = make_python(tmp_path, random=True, **{"die after": 6})
        out = self.fails(tmp_path, here, python)
        assert "the server stopped answering" in out
        assert "illegal memory access" in out
        assert "--resume" in out
        assert len((tmp_path / "run" / "observations.jsonl").read_text().splitlines()) >= 6
        assert "illegal memory access" in (tmp_path / "run" / "report.md").read_text()

    def test_a_guard_without_a_marker(self, tmp_path: Path, here: Here) -> None:
        python = make_python(tmp_path, random=True, **{"no plugins": True})
        out = self.fails(tmp_path, here, python, "--guard", "ksplit1")
        assert "guard 'ksplit1' is active in 0 of 1 scheduler processes" in out

    def test_a_guard_for_a_module_that_is_never_imported(self, tmp_path: Path, here: Here) -> None:
        out = self.fails(tmp_path, here, make_python(tmp_path, random=True), "--guard", "splitk")
        assert "aiter.fused_moe was never imported" in out

    def test_a_marker_without_a_guard(
        self, tmp_path: Path, here: Here, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        of_arm = apply.environment

        def of_another_arm(
            _guard: Guard, folder: Path, markers: Path, given: dict[str, str]
        ) -> dict[str, str]:
            return of_arm(guard("ksplit1"), apply.write_folder(folder), markers, given)

        monkeypatch.setattr(apply, "environment", of_another_arm)
        out = self.fails(tmp_path, here, make_python(tmp_path, random=True))
        assert "asked was no guard in its processes, and there is 'ksplit1' in" in out

    def test_a_flag_that_the_server_does_not_confirm(self, tmp_path: Path, here: Here) -> None:
        out = self.fails(tmp_path, here, make_python(tmp_path, random=True), "--guard", "triton-moe")
        assert "the server reports moe_runner_backend 'numpy', not 'triton'" in out

    def test_a_guard_that_the_version_cannot_have(self, tmp_path: Path, here: Here) -> None:
        out = self.fails(tmp_path, here, make_python(tmp_path, "0.5.9"), "--guard", "ksplit1", code=2)
        assert "guard 'ksplit1' does not fit sglang 0.5.9" in out

    def test_a_key_that_would_be_kept_with_the_run(self, tmp_path: Path, here: Here) -> None:
        done = here(*words(tmp_path, make_python(tmp_path), "--", "--api-key", "k"))
        assert done.code == 2
        assert "needs no --api-key" in done.out


class TestPrintCommand:
    @pytest.mark.parametrize(
        ("version", "name"),
        [
            ("0.5.9", "--mamba-scheduler-strategy"),
            ("0.5.13", "--mamba-scheduler-strategy"),
            ("0.5.21", "--mamba-radix-cache-strategy"),
            ("0.5.23", "--mamba-radix-cache-strategy"),
            ("0.0.0.dev0", "--mamba-radix-cache-strategy"),
        ],
    )
    def test_flags_by_version(self, version: str, name: str, tmp_path: Path, here: Here) -> None:
        python = make_python(tmp_path, version)
        done = here("run", "--model", "Qwen3.6-35B-A3B-FP8", "--python", str(python), "--print-command")
        assert done.code == 0, done.err
        assert f"{name} extra_buffer" in done.out
        assert "--model-path Qwen/Qwen3.6-35B-A3B-FP8" in done.out
        assert not done.directory.exists()
        assert not list(tmp_path.glob("said-*"))

    def test_it_can_be_pasted(self, tmp_path: Path, here: Here) -> None:
        python = make_python(tmp_path, alone=True, exit=0)
        done = here(
            *words(tmp_path, python, "--guard", "none", "--guard", "ksplit1", "--print-command"),
            "--",
            "--mamba-radix-cache-strategy",
            "no_buffer",
        )
        first, second = (line for line in done.out.splitlines() if not line.startswith("#"))
        assert "FIDELITY_GUARD=ksplit1" in second
        assert "AITER_KSPLIT=1" in second
        subprocess.run(first, shell=True, check=True, env={**os.environ, "HOME": str(tmp_path)})
        assert said(tmp_path)["options"]["strategy"] == "no_buffer"

    def test_without_the_module_the_command_line_tool_serves(self, tmp_path: Path, here: Here) -> None:
        python = make_python(tmp_path, "0.7.0", module=False)
        done = here(*words(tmp_path, python, "--print-command"))
        assert "-m sglang.cli.main serve --model-path" in done.out
