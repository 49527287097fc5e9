"""Each detector of the judge is needed: without it some row of the mutation table is no longer as it must be.

The rows are run once and judged many times.
"""

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fidelity import compare, comparison, evidence, scoring, shift_judge
from fidelity.judge import judge
from fidelity.judging import draft, rows
from fidelity.manifest import Manifest
from fidelity.observations import Observation, read
from fidelity.runner import OBSERVATIONS
from fidelity.selftest.catalogue import ROWS
from fidelity.selftest.row import Row
from fidelity.selftest.run import Task, record

pytestmark = pytest.mark.slow

Patch = pytest.MonkeyPatch

RECORDED = (
    "nan-500",
    "nan-clamped",
    "split-k-nan, no logprobs",
    "split-k in drafts",
    "no-state, code word",
    "shared-page",
    "kv-scale-decode",
    "swapped-row",
    "shifted-logprobs in re-sends",
    "split-cold, split-k-extend",
    "split-cold, sanitised NaN, one length",
    "never-hits",
    "null-counts",
)

Recorded = dict[str, tuple[Row, Manifest, list[Observation]]]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    found: Recorded = {}
    for row in (row for row in ROWS if row.name in RECORDED):
        folder = tmp_path_factory.mktemp("row")
        manifest = record(Task(row, 0, quick=True), folder)
        found[row.name] = (row, manifest, read(Path(folder) / OBSERVATIONS))
    assert set(found) == set(RECORDED)
    return found


def missed(recorded: Recorded) -> set[str]:
    """The rows whose verdict is not the one that they must have."""
    return {name for name, (row, manifest, sent) in recorded.items() if not row.holds(judge(manifest, sent))}


def without_rule(*begins: str) -> Callable[[Patch], None]:
    """The absolute rules that begin so never come."""

    def apply(patch: Patch) -> None:
        own = compare.broken_rules

        def fewer(*given: Any, **named: Any) -> tuple[str, ...]:
            return tuple(rule for rule in own(*given, **named) if not rule.startswith(begins))

        for name, module in list(sys.modules.items()):
            if name.startswith("fidelity.") and getattr(module, "broken_rules", None) is own:
                patch.setattr(module, "broken_rules", fewer)

    return apply


def no_flips(patch: Patch) -> None:
    patch.setattr(compare.Agreement, "corrupt", property(lambda self: self.kind == "broken"))


def no_shift(patch: Patch) -> None:
    patch.setattr(shift_judge, "_with_shifts", lambda verdict, *_: verdict)


def no_neighbours(patch: Patch) -> None:
    patch.setattr(shift_judge, "neighbour_rule", lambda verdict, *_: verdict)


def no_regret(patch: Patch) -> None:
    patch.setattr(scoring, "SURE", math.inf)
    patch.setattr(scoring, "HARD", math.inf)


def no_cross_talk(patch: Patch) -> None:
    patch.setattr(rows, "_whose", lambda *_: None)


def no_acceptance(patch: Patch) -> None:
    patch.setattr(draft, "BROKEN", 0.0)
    patch.setattr(draft, "KEPT", 0.0)


def any_count(patch: Patch) -> None:
    """A send counts as a hit whatever the server says."""
    for module in (evidence, comparison):
        patch.setattr(module, "missed", lambda *_, **__: None)
        if hasattr(module, "not_cold"):
            patch.setattr(module, "not_cold", lambda *_: None)


DETECTORS: dict[str, tuple[Callable[[Patch], None], str]] = {
    "NaN": (without_rule("NaN"), "nan-500"),
    "logprob that is no number": (without_rule("the emitted token's logprob"), "nan-clamped"),
    "flat row": (without_rule("flat row"), "split-cold, sanitised NaN, one length"),
    "run of one id": (without_rule("run of one id"), "split-k-nan, no logprobs"),
    "impossible probabilities": (
        without_rule("probabilities above 1", "not the top token"),
        "shifted-logprobs in re-sends",
    ),
    "hard flips and off-list tokens": (no_flips, "no-state, code word"),
    "shift test": (no_shift, "shared-page"),
    "neighbouring lengths": (no_neighbours, "split-cold, split-k-extend"),
    "regret under a clean prefill": (no_regret, "kv-scale-decode"),
    "cross-talk": (no_cross_talk, "swapped-row"),
    "acceptance": (no_acceptance, "split-k in drafts"),
    "the server's own count": (any_count, "never-hits"),
}
"""How each detector is taken out of the judge, and a row that then is not as it must be."""


def test_with_all_detectors_every_row_is_as_it_must_be(recorded: Recorded) -> None:
    assert missed(recorded) == set()


@pytest.mark.parametrize("name", DETECTORS)
def test_without_a_detector_its_row_is_missed(
    recorded: Recorded, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_out, row = DETECTORS[name]
    take_out(monkeypatch)
    assert row in missed(recorded)
