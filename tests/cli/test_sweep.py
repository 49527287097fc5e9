"""The sweep on the embedded engine: the map shows the fault region at every position, and nothing else."""

from pathlib import Path
from typing import Any

import pytest

from .conftest import Done, run_command

PLAN = """
target: {{kind: embedded, model: embedded, fault: {fault}, cu: {cu}}}
arms: [{arms}]
probes: [sweep]
prompts: {{count: 4, include: []}}
sweep: {{multiples: [1, 3], beyond: [1, 33]}}
resend: {{warmup_sends: 2, warmup_tokens: 16}}
"""

NONE, SPLITK = "{name: none}", "{name: splitk, guard: splitk}"
REST = "." * 65


def swept(folder: Path, fault: str, cu: int, *arms: str) -> Done:
    (folder / "plan.yaml").write_text(PLAN.format(fault=fault, cu=cu, arms=", ".join(arms)))
    return run_command(folder, "run", "--config", "plan.yaml")


def maps(done: Done, arm: str = "none") -> dict[str, tuple[str, str]]:
    """State and map of each position."""
    return {cell["name"]: (cell["state"], cell["notes"][0]) for cell in done.arm(arm)["cells"]}


def drawn(state: str, corrupt: int) -> dict[str, Any]:
    row = ("X" * corrupt + REST)[:65]
    few = f"from 192: 1-5 {row[:5]}  33 .  64 ."
    return {"from 64": (state, f"from 64: 1-65 {row}  97 ."), "from 192": (state, few)}


@pytest.mark.parametrize(
    ("fault", "cu", "corrupt"),
    [
        ("split-k-extend", 32, 2),
        pytest.param("split-k-extend", 64, 4, marks=pytest.mark.slow),
        pytest.param("split-k-nan", 16, 1, marks=pytest.mark.slow),
    ],
)
def test_the_map_shows_the_fault_region_and_the_guard_clears_it(
    tmp_path: Path, fault: str, cu: int, corrupt: int
) -> None:
    done = swept(tmp_path, fault, cu, NONE, SPLITK)
    assert done.code == 10, done.err
    assert maps(done) == drawn("fail", corrupt)
    assert maps(done, "splitk") == drawn("pass", 0)
    hits = [obs for obs in done.observations if obs["role"] == "hit"]
    assert all(obs["answer"]["cached_tokens"] == obs["length"] - obs["tail"] for obs in hits)


@pytest.mark.slow
def test_a_healthy_server_has_a_clean_map_and_retreat_has_no_short_tail(tmp_path: Path) -> None:
    done = swept(tmp_path, "none", 16, NONE, "{name: retreat, guard: retreat}")
    assert done.code == 0, done.err
    assert maps(done) == drawn("pass", 0)
    retreated = {name: (state, line.replace(" .", " -", 1)) for name, (state, line) in maps(done).items()}
    assert maps(done, "retreat") == retreated
