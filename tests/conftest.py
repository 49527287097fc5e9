"""The sglang in memory, records made by hand, and a whole run against the fake."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

# The embedded engine runs on one BLAS thread; numpy reads these when it is first imported.
for library in ("OPENBLAS", "OMP", "MKL", "VECLIB"):
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")

import pytest

from fidelity import manifest as manifests
from fidelity import plan as plans
from fidelity.events import Event
from fidelity.judge import judge
from fidelity.manifest import Manifest
from fidelity.observations import Answer, Observation, read
from fidelity.plan import Arm
from fidelity.runner import OBSERVATIONS, Run, run
from fidelity.servers.running import RunningServer
from fidelity.verdicts import CellVerdict, RunVerdict

from .fake_sglang import URL, FakeSglang, TokenCache


@pytest.fixture(scope="session")
def fake_sglang() -> type[FakeSglang]:
    return FakeSglang


@pytest.fixture(scope="session")
def token_cache() -> type[TokenCache]:
    return TokenCache


@pytest.fixture(scope="session")
def observation() -> Callable[..., Observation]:
    """A record; keywords go to its answer or to itself. By default a clean hit at 193 tokens."""
    names = set(Answer.__dataclass_fields__)

    def make(**given: Any) -> Observation:
        answer = {
            "status": 200,
            "latency": 0.01,
            "text": "Paris",
            "output_ids": [5],
            "prompt_tokens": 193,
            "cached_tokens": 192,
            "logprobs": [-0.1],
            "top": [[(5, -0.1), (6, -3.0), (7, -4.0), (8, -5.0), (9, -6.0)]],
            "values": 6,
        }
        answer |= {key: value for key, value in given.items() if key in names}
        own = {"order": 0, "arm": "none", "probe": "resend", "role": "hit", "namespace": "n", "length": 193}
        own |= {
            "sent_at": 0.0,
            "expected_text": "Paris",
            "cell": "L=193 tail=1",
            "kind": "suspect",
            "tail": 1,
        }
        own |= {key: value for key, value in given.items() if key not in names}
        return Observation(**own, answer=Answer(**answer))

    return make


@pytest.fixture(scope="session")
def prompt_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two families, 40 prompts each; every prompt ends with its answer."""
    folder = tmp_path_factory.mktemp("prompts")
    for name in ("echo", "repeat"):
        items = "".join(f"  - {{id: w{n}, answer: {name}{n}}}\n" for n in range(40))
        frame = f"  - user: '{{filler}} and now {name} {{answer}}'\n"
        text = f"family: {name}\nkind: fact\nabout: say it again\nframes:\n{frame}items:\n{items}"
        (folder / f"{name}.yaml").write_text(text, encoding="utf-8")
    return folder


class Played(NamedTuple):
    verdict: RunVerdict
    records: list[Observation]
    events: list[Event]
    manifest: Manifest
    directory: Path

    def cells(self, arm: int = 0) -> dict[str, CellVerdict]:
        """The cell verdicts of one arm, by name."""
        return {cell.name: cell for cell in self.verdict.arms[arm].cells}


@pytest.fixture
def play(prompt_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Played]:
    """Run a plan against a fake (or one for each arm), then judge it. `resume` goes on in its folder;
    `stop_after` abandons the run after so many events, as a kill would."""

    def start(
        fakes: FakeSglang | Mapping[str, FakeSglang],
        over: Mapping[str, Any] | None = None,
        *,
        resume: Path | None = None,
        stop_after: int | None = None,
        owned: bool = False,
        name: str = "run",
    ) -> Played:
        base: dict[str, Any] = {
            "target": {"kind": "attach", "url": URL},
            "prompts": {"folder": str(prompt_folder), "count": 6},
            "probes": ["resend"],
            "thresholds": {"max_rate": 0.4},
            "resend": {"suspects": [1], "controls": [33], "warmup_sends": 2, "warmup_tokens": 4},
        }

        @contextmanager
        def server(_run: Run, arm: Arm) -> Iterator[RunningServer]:
            fake = fakes if isinstance(fakes, FakeSglang) else fakes[arm.name]
            with fake.client() as client:
                yield RunningServer(url=URL, owned=owned, client=client)

        monkeypatch.setattr("fidelity.runner._server", server)
        if resume is None:
            directory = tmp_path / name
            directory.mkdir()
            manifest = Manifest(
                "run-1", "2026-01-01T00:00:00+0000", plans.build(plans.merge(base, over or {}))
            )
        else:
            directory, manifest = resume, manifests.load(resume)
        running = run(manifest, directory)
        events = []
        for event in running:
            events.append(event)
            if len(events) == stop_after:
                running.close()
        records = read(directory / OBSERVATIONS)
        return Played(judge(manifest, records), records, events, manifest, directory)

    return start
