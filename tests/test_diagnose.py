"""Patterns of corrupt and clean cells, made by hand, and what would explain each."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from fidelity.diagnose import diagnose
from fidelity.diagnosis import explanations as named
from fidelity.diagnosis.order import Order
from fidelity.verdicts import (
    FAIL,
    INCONCLUSIVE,
    NOT_APPLICABLE,
    PASS,
    ArmVerdict,
    CellVerdict,
    Figure,
    Reading,
)

ONE_TOKEN = named.kernel(1).name
EXTRA_BUFFER = {"strategy": "extra_buffer"}


def cell(probe: str, name: str, corrupt: int = 0, **own: Any) -> CellVerdict:
    base = CellVerdict(
        arm="none",
        probe=probe,
        name=name,
        kind="suspect",
        state=FAIL if corrupt else PASS,
        reason=f"{corrupt} of 6",
        prompts=6,
        exercised=6,
        corrupt=corrupt,
    )
    return replace(base, **own)


def hit(tail: int, corrupt: int = 0, position: int = 192, **own: Any) -> CellVerdict:
    length = position + tail
    return cell("resend", f"L={length} tail={tail}", corrupt, length=length, tail=tail, **own)


def cold(length: int, corrupt: int = 0, **own: Any) -> CellVerdict:
    return cell("resend", f"L={length} cold", corrupt, kind="floor", length=length, **own)


def past(*corrupt: int) -> list[CellVerdict]:
    """The four cells of one checkpoint."""
    return [
        cell("checkpoint", f"from 192: +{tail}", bad, length=192 + tail, tail=tail)
        for tail, bad in enumerate(corrupt, 1)
    ]


def rows(size: int, corrupt: int = 0, **own: Any) -> CellVerdict:
    return cell("batch", f"M={size}", corrupt, length=193, tail=1, cached={"192": 6}, **own)


def ragged(hits: int = 0, together: int = 0, **own: Any) -> list[CellVerdict]:
    return [cell("batch", "ragged rows", together), cell("batch", "ragged fill", hits, **own)]


def decode(corrupt: int = 0, **own: Any) -> CellVerdict:
    return cell("decode", "T=0", corrupt, **own)


def arm(
    cells: Sequence[CellVerdict], right: int = 18, state: str | None = None, reason: str = ""
) -> ArmVerdict:
    state = state or (FAIL if any(one.state == FAIL for one in cells) else PASS)
    return ArmVerdict(
        *("none", "none", False, state, reason, ""), tuple(cells), (), (), False, right, 18, 1, 0, 1.0
    )


CLEAN = [
    hit(1),
    hit(2),
    hit(33),
    cold(193),
    decode(),
    rows(1),
    rows(2),
    rows(5),
    *ragged(),
    *past(0, 0, 0, 0),
]
COLDS = [cold(193), cold(194), cold(225)]
NOT_TOP = {"not the top token at temperature 0": 6}

PATTERNS: dict[str, tuple[str, list[CellVerdict]]] = {
    "the first thread": (
        ONE_TOKEN,
        [hit(1, 6), hit(2), hit(33), *COLDS, decode(), rows(1, 6), rows(2), *past(6, 0, 0, 0)],
    ),
    "the second thread": (
        ONE_TOKEN,
        [hit(1, 6), hit(2), hit(33), *COLDS, decode(6), rows(1, 6), rows(2), rows(5), *ragged()],
    ),
    "a default run": (ONE_TOKEN, [hit(1, 6), hit(2), hit(33), *COLDS, decode(6)]),
    "up to two tokens": (
        "small-M kernel up to M=2",
        [
            hit(1, 6),
            hit(2, 6),
            hit(3),
            hit(33),
            decode(6),
            rows(1, 6),
            rows(2, 6),
            rows(5),
            *past(6, 6, 0, 0),
        ],
    ),
    "a stored state": (
        named.STATE,
        [hit(1, 6), hit(2, 6), hit(33), *COLDS, decode(), rows(1, 6), rows(5, 6), *past(6, 6, 6, 5)],
    ),
    "a stored state, far control too": (
        named.STATE,
        [hit(1, 6), hit(2, 6), hit(33, 6), *COLDS, decode(), rows(5, 6), *ragged(6), *past(6, 6, 6, 6)],
    ),
    "stored KV": (
        named.KV,
        [hit(1, 6), hit(2, 6), hit(33), *COLDS, decode(), rows(1, 6), rows(5, 6), *past(0, 5, 0, 6)],
    ),
    "a ragged fill": (
        named.FILLED_TOGETHER,
        [hit(1), hit(2), hit(33), decode(), rows(1), rows(5), *ragged(4, rules={"cross-talk": 4})],
    ),
    "another row's": (
        named.CROSS_TALK,
        [
            *(hit(1), hit(2), hit(33), decode(), rows(1)),
            *(rows(2, 6, rules={"cross-talk": 6}), rows(5, 5), *ragged(0, 5)),
        ],
    ),
    "decode": (
        named.DECODE,
        [hit(1), hit(2), hit(33), *COLDS, decode(5), rows(1), rows(5), *past(0, 0, 0, 0)],
    ),
    "decode, in batches too": (
        named.DECODE,
        [hit(1), hit(2), hit(33), *COLDS, decode(6), rows(1, 6), rows(2, 6), rows(5, 5), *past(0, 0, 0, 0)],
    ),
    "the draft": (
        named.DRAFT,
        [hit(1), hit(2), decode(), cell("draft", "output"), cell("draft", "acceptance", state=FAIL)],
    ),
    "quoted logprobs": (
        named.QUOTED,
        [
            *(hit(1), hit(2), hit(33), *COLDS, decode(5, rules=NOT_TOP), rows(1, 5, rules=NOT_TOP)),
            *(rows(5, 5, rules=NOT_TOP), *ragged(5, 5, rules=NOT_TOP)),
        ],
    ),
    "long prompts": (
        named.BOUNDARY,
        [hit(1), hit(33), hit(1, 6, 640), hit(33, 6, 640), cold(193), cold(641), decode(), *past(0, 0, 0, 0)],
    ),
}


@pytest.mark.parametrize("name", PATTERNS)
def test_the_first_hypothesis_explains_the_pattern(name: str) -> None:
    expected, cells = PATTERNS[name]
    found = diagnose(arm(cells), EXTRA_BUFFER)
    assert found[0].name == expected
    assert found[0].rank == 1
    assert found[0].support
    assert all(one.next for one in found)


@pytest.mark.parametrize("name", ["decode, in batches too", "a ragged fill"])
def test_nothing_speaks_against_what_fits_whole(name: str) -> None:
    """The decode steps of rows are decode too; a hit on another's state answers as that one."""
    assert diagnose(arm(PATTERNS[name][1]), EXTRA_BUFFER)[0].against == ()


def test_quoted_logprobs_of_other_tokens_are_named() -> None:
    found = diagnose(arm(PATTERNS["quoted logprobs"][1]), EXTRA_BUFFER)
    assert any("fits quoted logprobs that no distribution" in line for line in found[0].support)


def test_a_healthy_arm_has_none() -> None:
    assert diagnose(arm(CLEAN), {**EXTRA_BUFFER, "fault_region": 1}) == ()
    skipped = [*CLEAN, cell("draft", "draft", state=NOT_APPLICABLE)]
    assert diagnose(arm(skipped, right=2), EXTRA_BUFFER) == ()


def test_known_answers_that_are_wrong_cold_speak_for_a_common_fault() -> None:
    cells = [hit(1), hit(2), hit(33), *(cold(length, 4) for length in (193, 194, 225)), decode()]
    found = diagnose(arm(cells, right=1), EXTRA_BUFFER)
    assert found[0].name == named.COMMON_UNSEEN
    assert "--reference" in found[0].name
    assert any("1 of 18 right" in line for line in found[0].support)


def test_broken_cold_answers_of_the_screening_count() -> None:
    screened = arm(
        [hit(1, state=INCONCLUSIVE)], state=FAIL, reason="6 cold answers of the screening are broken"
    )
    found = diagnose(screened, EXTRA_BUFFER)
    assert any("the cold answers of the screening" in line for line in found[0].support)


def test_hits_that_go_wrong_late_are_drift() -> None:
    cells = [hit(1, 3), hit(2, 2), hit(33, 1), *COLDS, decode()]
    late = diagnose(arm(cells), EXTRA_BUFFER, Order(pairs=40, later=0.95, p=1e-4))
    assert late[0].name == named.DRIFT
    assert any("95 % of 40 pairs" in line for line in late[0].support)
    anywhere = diagnose(arm(cells), EXTRA_BUFFER, Order(pairs=40, later=0.5, p=0.5))
    assert anywhere[0].name != named.DRIFT


def test_cold_answers_wrong_at_one_length_alone_are_the_kernels() -> None:
    wrong = Figure("cold wrong here and right at 2 other lengths, 6 of 6: rate", 1.0, "<=", 0.1, "", False)
    cells = [
        hit(1, state=FAIL, figures=(wrong,)),
        hit(2),
        hit(33),
        cold(193, 2),
        cold(194),
        rows(5, 5),
        decode(),
    ]
    found = diagnose(arm(cells), EXTRA_BUFFER)
    assert found[0].name == ONE_TOKEN
    assert any("at one length alone" in line for line in found[0].support)
    # What was held against such cold answers says nothing.
    assert not any("M=5" in line or "L=193 cold" in line for line in (*found[0].support, *found[0].against))


def test_without_recurrent_states_only_kv_is_stored() -> None:
    cells = PATTERNS["a stored state"][1]
    names = [one.name for one in diagnose(arm(cells), {"strategy": "attention only"})]
    assert names[0] == named.KV
    assert named.STATE not in names


def test_what_the_cells_cannot_separate_shares_a_rank_and_names_the_cell_that_would() -> None:
    found = diagnose(arm([hit(1, 6), hit(2, 6), hit(33), *COLDS, decode()]), EXTRA_BUFFER)
    assert [(one.rank, one.name) for one in found[:2]] == [(1, named.STATE), (1, named.KV)]
    assert found[0].next.startswith("--probe checkpoint would tell it from 'stored KV'")
    measured = diagnose(arm([hit(1, 6), hit(2, 6), hit(33), decode(), *past(6, 6, 6, 6)]), EXTRA_BUFFER)
    assert measured[0].name == named.STATE
    assert all(one.rank > 1 for one in measured if one.name == named.KV)


def test_a_kernel_of_the_servers_shapes_is_likelier() -> None:
    cells = [hit(1, 6), hit(2, 6), hit(33), rows(1, 6), rows(2, 6), rows(5)]
    found = diagnose(arm(cells), {**EXTRA_BUFFER, "fault_region": 2})
    assert found[0].name == "small-M kernel up to M=2"
    assert any("it reaches M = 2" in line for line in found[0].support)
    other = diagnose(arm(cells), {**EXTRA_BUFFER, "fault_region": 0})
    kernel = next(one for one in other if one.name.startswith("small-M"))
    assert any("it reaches no forward" in line for line in kernel.against)


def test_a_hypothesis_says_what_speaks_against_it() -> None:
    found = diagnose(arm([hit(1, 6), hit(2), decode()]), EXTRA_BUFFER)
    assert any("decode T=0" in line and "speaks against it" in line for line in found[0].against)
    assert not any("decode T=0" in line for line in found[0].support)


def test_moved_logprobs_are_explained_and_count_less() -> None:
    far = Figure("median |delta logprob| of control hits, nats", 2.0, "<=", 0.5, "", False)
    moved = hit(33, state=INCONCLUSIVE, figures=(far,))
    found = diagnose(arm([hit(1), hit(2), moved, decode()]), EXTRA_BUFFER)
    assert found
    assert any("would explain what is moved: L=225 tail=33" in one for each in found for one in each.support)


def test_a_sweep_tells_where_the_corrupt_tails_end() -> None:
    ends = (
        Reading("smallest corrupt tail", 1, "tokens"),
        Reading("largest corrupt tail", 4, "tokens"),
        Reading("smallest clean tail", 5, "tokens"),
    )
    cells = [cell("sweep", f"from {place}", 4, readings=ends) for place in (64, 192)]
    found = diagnose(arm([*cells, decode(6), rows(4, 6), rows(5)]), EXTRA_BUFFER)
    assert found[0].name == "small-M kernel up to M=4"
    assert any("sweep from 64 tail=5" in line for line in found[0].support)


def test_rows_whose_nan_came_as_an_http_error_are_hits_too() -> None:
    cells = [hit(1, 6), hit(33, 6), decode(), replace(rows(5, 5), cached={})]
    state = next(one for one in diagnose(arm(cells), EXTRA_BUFFER) if one.name == named.STATE)
    assert any("batch M=5" in line for line in state.support)
    assert not any("batch M=5" in line for line in state.against)
