"""The small commands, and what the installed package carries."""

import resource
import statistics
import subprocess
import zipfile
from pathlib import Path

from .conftest import COMMAND, Fidelity, environment


def test_version(fidelity: Fidelity) -> None:
    done = fidelity("--version")
    assert (done.code, done.out) == (0, "fidelity 0.1.0\n")


def test_help_is_quick(tmp_path: Path) -> None:
    times = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([COMMAND, "--help"], cwd=tmp_path, env=environment(), check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    # Processor time: the target of 0.3 s is for an idle machine, and a loaded one must not fail this.
    assert statistics.median(times) < 0.45, times


def test_help_imports_nothing_heavy(tmp_path: Path) -> None:
    code = (
        "import sys; sys.argv = ['fidelity', '--help']\n"
        "from fidelity.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "heavy = {'numpy', 'scipy', 'pandas', 'transformers', 'httpx', 'pydantic', 'jinja2', 'starlette'}\n"
        "sys.stderr.write(','.join(sorted(heavy & set(sys.modules))))\n"
    )
    python = COMMAND.with_name("python")
    done = subprocess.run([python, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_prompts_shows_the_threads_own_prompt(fidelity: Fidelity) -> None:
    done = fidelity("prompts", "--length", "193", "--prompts", "12", "--full")
    assert done.code == 0, done.err
    assert done.out.count(": 193 tokens") == 12
    line = next(line for line in done.out.splitlines() if line.startswith("capital/france"))
    assert "items 1 to 39" in line
    assert "answer 'Paris'" in line
    assert "what is the capital of France? Reply with only the city name, nothing else." in done.out


def test_export_writes_a_hugging_face_folder(fidelity: Fidelity, tmp_path: Path) -> None:
    done = fidelity("serve", "--export", str(tmp_path / "hf"))
    assert done.code == 0, done.err
    names = {path.name for path in (tmp_path / "hf").iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"} <= names


def test_shell_completion_is_offered(fidelity: Fidelity) -> None:
    assert "--install-completion" in fidelity("--help").out


def test_the_wheel_carries_prompts_configs_profiles_and_templates(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[2]
    python = COMMAND.with_name("python")
    subprocess.run(
        [python, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(root)],
        check=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    for wanted in (
        "fidelity/data/prompts/capital.yaml",
        "fidelity/data/configs/first-thread.yaml",
        "fidelity/data/configs/gate.yaml",
        "fidelity/refserver/profiles/tokenizer.json",
        "fidelity/refserver/profiles/quiz-state/weights.npz",
        "fidelity/refserver/profiles/quiz-kv/weights.npz",
        "fidelity/report/templates/report.md.j2",
    ):
        assert wanted in names
