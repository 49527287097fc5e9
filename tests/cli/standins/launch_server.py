"""Stands for `sglang.launch_server`: its flags as the version named in VERSION has them, then the embedded
engine on the port given. FAKE (JSON in the environment) says what goes wrong."""

import argparse
import importlib.metadata
import json
import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path

FAKE = json.loads(os.environ.get("FAKE", "{}"))
WAIT = "import time; time.sleep(600)"


def parse() -> argparse.Namespace:
    numbers = tuple(map(int, importlib.metadata.version("sglang").split(".")[:3]))
    renamed = "--mamba-radix-cache-strategy"
    strategy = renamed if numbers >= (0, 5, 14) or not any(numbers) else "--mamba-scheduler-strategy"
    parser = argparse.ArgumentParser(prog="sglang.launch_server", allow_abbrev=False)
    parser.add_argument("--model-path", "--model", required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=30000)
    parser.add_argument("--tensor-parallel-size", "--tp-size", "--tp", type=int, default=1)
    parser.add_argument(strategy, dest="strategy", default="extra_buffer")
    parser.add_argument("--page-size", default="64")
    parser.add_argument("--attention-backend", default="triton")
    parser.add_argument("--moe-runner-backend", default="auto")
    parser.add_argument("--trust-remote-code", action="store_true")
    return parser.parse_args()


def run_scheduler_process() -> None:
    """A scheduler under sglang's plugins, as far as the guards see one."""
    for entry in importlib.metadata.entry_points(group="sglang.srt.plugins"):
        entry.load()()
    time.sleep(600)


def say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def engine(options: argparse.Namespace) -> list[str]:
    guard = "unsplit" if os.environ.get("AITER_KSPLIT") == "1" else "none"
    words = {
        "--port": str(options.port),
        "--host": options.host,
        "--fault": FAKE.get("fault", "split-k-nan"),
        "--guard": guard,
        "--strategy": options.strategy,
        "--page-size": options.page_size,
        "--profile": "random" if FAKE.get("random") else "quiz-state",
    }
    pairs = [word for pair in words.items() for word in pair]
    return [sys.executable, "-P", "-m", "fidelity.refserver", *pairs]


def end_after(records: Path, count: int) -> None:
    while not (records.exists() and records.read_bytes().count(b"\n") >= count):
        time.sleep(0.02)


def main() -> int:
    options = parse()
    (Path(FAKE["said"]) / f"said-{options.port}.json").write_text(
        json.dumps({"argv": sys.argv, "options": vars(options), "path": os.environ.get("PYTHONPATH", "")})
    )
    say(f"[2026-10-01 12:00:00] server_args=ServerArgs(model_path={options.model_path!r})")
    if not FAKE.get("alone"):
        subprocess.Popen([sys.executable, "-S", "-c", WAIT])
        subprocess.Popen([sys.executable, "-S", "-c", WAIT], start_new_session=True)
    if os.environ.get("FIDELITY_GUARD", "none") != "none" and not FAKE.get("no plugins"):
        multiprocessing.get_context("spawn").Process(target=run_scheduler_process, daemon=True).start()
        time.sleep(1)
    for line in FAKE.get("lines", []):
        say(line)
    if "exit" in FAKE:
        return int(FAKE["exit"])
    if "killed" in FAKE:
        os.kill(os.getpid(), 9)
    if FAKE.get("never ready"):
        time.sleep(600)
    server = subprocess.Popen(engine(options))
    if "die after" in FAKE:
        end_after(Path(FAKE["records"]), FAKE["die after"])
        server.kill()
        say("torch.AcceleratorError: HIP error: an illegal memory access was encountered")
        return 1
    return server.wait()


if __name__ == "__main__":
    sys.exit(main())
