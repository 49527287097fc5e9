"""What a reference tells the diagnosis, and quoted logprobs that go with no right token."""

from dataclasses import replace
from typing import Any

import pytest

from fidelity.diagnose import diagnose
from fidelity.diagnosis import explanations as named
from fidelity.probes.reference import ACCEPTANCE, DECODE
from fidelity.verdicts import FAIL, INCONCLUSIVE, NOT_APPLICABLE, PASS, ArmVerdict, CellVerdict

FACTS = {"strategy": "extra_buffer"}


def cell(probe: str, name: str, corrupt: int = 0, **own: Any) -> CellVerdict:
    base = CellVerdict("none", probe, name, "suspect", FAIL if corrupt else PASS, "said")
    return replace(base, prompts=6, exercised=6, corrupt=corrupt, **own)


def hit(length: int, tail: int, corrupt: int = 0, **own: Any) -> CellVerdict:
    return cell("resend", f"L={length} tail={tail}", corrupt, length=length, tail=tail, **own)


def cold(length: int) -> CellVerdict:
    return cell("resend", f"L={length} cold", kind="floor", length=length)


def told(length: int, state: str = PASS) -> CellVerdict:
    name = f"L={length} cold against the reference"
    return cell("reference", name, state=state, length=length)


def arm(cells: list[CellVerdict], reason: str = "") -> ArmVerdict:
    state = FAIL if reason or any(one.state == FAIL for one in cells) else PASS
    return ArmVerdict(
        "none", "none", False, state, reason, "", tuple(cells), (), (), False, 18, 18, 1, 0, 1.0
    )


HEALTHY = [hit(193, 1), hit(225, 33), cold(193), cold(225)]
DRAFTS = [cell("draft", "output"), cell("draft", "acceptance")]


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ([*HEALTHY, told(193, FAIL), told(225, FAIL)], named.COMMON),
        ([*HEALTHY, told(193, FAIL), told(225, FAIL), cell("reference", DECODE, 6)], named.COMMON),
        ([*HEALTHY, told(193), told(225, FAIL)], named.BOUNDARY),
        ([*DRAFTS, cell("reference", ACCEPTANCE, state=FAIL)], named.DRAFT),
    ],
)
def test_a_failing_reference_cell_has_its_explanation(cells: list[CellVerdict], expected: str) -> None:
    found = diagnose(arm(cells), FACTS)
    assert found[0].name == expected
    assert any("against the reference" in line for line in found[0].support)
    assert not any("--reference" in one.name + one.next for one in found)


@pytest.mark.parametrize("state", [PASS, INCONCLUSIVE, NOT_APPLICABLE])
def test_a_reference_that_shows_nothing_explains_nothing(state: str) -> None:
    assert diagnose(arm([*HEALTHY, told(193, state), told(225, state)]), FACTS) == ()


def test_a_clean_reference_speaks_against_a_common_fault() -> None:
    cells = [replace(cold(length), state=FAIL, corrupt=4) for length in (193, 225)]
    apart = diagnose(arm([*cells, told(193), told(225)]), FACTS)
    common = next(one for one in apart if one.name == named.COMMON)
    assert any("cold against the reference" in line for line in common.against)


def test_the_screening_may_tell_that_only_the_quoted_logprobs_are_wrong() -> None:
    for rule in ("not the top token at temperature 0 (2 nat below)", "probabilities above 1"):
        found = diagnose(arm([], f"6 of 6 cold answers are broken: {rule}"), FACTS)
        assert [one.name for one in found if one.rank == 1] == [named.QUOTED]
    broken = diagnose(arm([], "6 of 6 cold answers are broken: NaN: 41 null"), FACTS)
    assert broken[0].name == named.COMMON_UNSEEN


def test_clean_hits_of_a_model_that_hardly_needs_its_state_count_once() -> None:
    """As no-state on the profile quiz-kv at seed 0 of docs/diagnosis.md."""
    rows = [cell("batch", f"M={size}", length=193, tail=1, cached={"192": 6}) for size in (1, 2, 5)]
    ragged = [cell("batch", "ragged rows"), cell("batch", "ragged fill", 1)]
    past = [
        cell("checkpoint", f"from 192: +{tail}", bad, length=192 + tail, tail=tail)
        for tail, bad in enumerate((5, 0, 3, 0), 1)
    ]
    colds = [cold(length) for length in (193, 194, 225)]
    cells = [hit(193, 1), hit(194, 2), hit(225, 33, 2), *colds, cell("decode", "T=0"), *rows, *ragged, *past]
    found = diagnose(arm(cells), FACTS)
    assert [one.name for one in found if one.rank == 1] == [named.STATE]
