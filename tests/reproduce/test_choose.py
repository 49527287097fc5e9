"""Which cell is shown again, and by which of its sends."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from fidelity.errors import UsageError
from fidelity.manifest import Manifest
from fidelity.observations import Observation
from fidelity.reproduce.choose import find_cell, reproduction
from fidelity.reproduce.failing import command, failing_cells
from fidelity.verdicts import FAIL, PASS, ArmVerdict, CellVerdict, RunVerdict

from .conftest import NAN, TOP

Cells = Callable[..., CellVerdict]
Pairs = Callable[..., list[Observation]]


def arm(name: str, *cells: CellVerdict, baseline: bool = False, state: str = FAIL) -> ArmVerdict:
    own = tuple(replace(cell, arm=name) for cell in cells)
    return ArmVerdict(name, name, baseline, state, "why", "server", own, (), (), False, 0, 0, 0, 0, 0.0)


def run(*arms: ArmVerdict) -> RunVerdict:
    return RunVerdict(FAIL, 10, "why", "LABEL", "target", "complete", False, None, "", arms, ())


def test_deciding_arms_come_before_baselines_and_suspects_before_others(cell: Cells) -> None:
    control, suspect = cell("L=194 tail=2", kind="control"), cell()
    verdict = run(arm("none", cell("M=1", "batch"), baseline=True), arm("splitk", control, suspect))
    found = [(one.arm, one.name) for one in failing_cells(verdict)]
    assert found == [("splitk", "L=193 tail=1"), ("splitk", "L=194 tail=2"), ("none", "M=1")]
    assert find_cell(verdict, None, "none").name == "M=1"


def test_a_cell_is_named_as_in_the_reports_or_with_its_probe(cell: Cells) -> None:
    verdict = run(arm("none", cell(), cell("T=0", "decode"), cell("L=225 tail=33", state=PASS)))
    for name, wanted in (
        ("decode T=0", "T=0"),
        ("resend L=193 tail=1", "L=193 tail=1"),
        ("L=225  tail=33",) * 2,
    ):
        assert find_cell(verdict, name, None).name == " ".join(wanted.split())


def test_what_the_run_does_not_have_is_told_with_the_nearest(cell: Cells) -> None:
    verdict = run(arm("none", cell("T=0", "decode")))
    with pytest.raises(UsageError, match="no cell 'decode T=O'") as told:
        find_cell(verdict, "decode T=O", None)
    assert told.value.hint == "did you mean 'decode T=0'?"
    with pytest.raises(UsageError, match="no arm 'non'"):
        find_cell(verdict, None, "non")


def test_no_failing_cell_is_none(cell: Cells) -> None:
    assert find_cell(run(arm("none", cell(state=PASS), state=PASS)), None, None) is None


def test_an_arm_that_fails_by_its_screening_has_that_as_its_cell(
    cell: Cells, observation: Any, chosen: Any
) -> None:
    (screening,) = failing_cells(run(arm("none", cell(state=PASS))))
    screen = observation(role="screen", group="p@225", input_ids=[1] * 193, **NAN)
    assert chosen(screening, [screen]).case.sends == (screen,)


def test_the_arm_is_named_where_another_fails_the_same_cell(cell: Cells, tmp_path: Any) -> None:
    verdict = run(arm("none", cell()), arm("splitk", cell()))
    first, second = failing_cells(verdict)
    assert command(tmp_path, first, verdict) == f"fidelity reproduce {tmp_path} 'L=193 tail=1'"
    assert command(tmp_path, second, verdict).endswith("'L=193 tail=1' --arm splitk")


def test_a_clean_hit_is_never_chosen_and_of_corrupt_ones_the_worst(
    cell: Cells, pair: Pairs, chosen: Any
) -> None:
    flipped = pair("flip", 10, output_ids=[6], logprobs=[-0.1], top=[[(6, -0.1), (5, -3.0), (7, -4.0)]])
    records = [*pair("clean"), *flipped, *pair("nan", 20, **NAN)]
    case = chosen(cell(), records).case
    assert (case.prompt, case.why) == ("nan", "NaN: 1 null")
    assert [send.role for send in case.sends] == ["cold", "hit"]


def test_fewer_requests_come_before_worse_answers(cell: Cells, pair: Pairs, chosen: Any) -> None:
    cold, hit = pair("nan", 20, **NAN)
    seed = replace(cold, role="seed", order=21, length=192, input_ids=[])
    flipped = pair("flip", 10, output_ids=[6], logprobs=[-0.1], top=[[(6, -0.1), (5, -3.0), (7, -4.0)]])
    assert chosen(cell(), [cold, seed, hit, *flipped]).case.prompt == "flip"
    assert [len(step.requests[0].input_ids) for step in chosen(cell(), [cold, seed, hit]).case.steps] == [
        193,
        192,
        193,
    ]


def test_seeds_of_another_namespace_or_after_the_hit_are_left_out(
    cell: Cells, pair: Pairs, chosen: Any
) -> None:
    cold, hit = pair("nan", **NAN)
    other = replace(cold, role="seed", order=1, namespace="nan/hit1", input_ids=[])
    late = replace(cold, role="seed", order=9, input_ids=[])
    assert [send.role for send in chosen(cell(), [cold, other, hit, late]).case.sends] == ["cold", "hit"]


def test_a_record_without_ids_has_no_case(cell: Cells, pair: Pairs, manifest: Manifest) -> None:
    cold, hit = pair("nan", **NAN)
    assert reproduction(cell(), manifest, "", [replace(cold, input_ids=[]), hit]) is None


def test_where_no_token_flipped_the_one_that_moved_most_is_shown(
    cell: Cells, pair: Pairs, chosen: Any
) -> None:
    def moved(by: float) -> dict[str, Any]:
        return {"top": [[(5, -0.1), (6, -3.0 - by), (7, -4.0 - by)]], "asked": []}

    case = chosen(cell(), [*pair("a", **moved(0.5)), *pair("b", 10, **moved(2.0))]).case
    assert case.prompt == "b"
    cold, hit = case.sends
    weaker = replace(hit, answer=replace(hit.answer, top=[[(5, -0.1), (6, -3.2), (7, -4.2)]]))
    assert case.rule([cold, hit])
    assert not case.rule([cold, weaker])


def test_a_tail_that_the_guard_should_not_leave(
    cell: Cells, pair: Pairs, chosen: Any, manifest: Manifest
) -> None:
    manifest.arms["none"].min_tail = 2
    assert "1 tokens were recomputed" in chosen(cell(), pair("a")).case.why


def test_a_decode_takes_its_clean_prefill_along(cell: Cells, observation: Any, chosen: Any) -> None:
    shared = {"probe": "decode", "cell": "T=0", "group": "g", "prompt": "p", "length": 20, "tail": None}
    decode = observation(
        **shared,
        role="decode",
        input_ids=[1] * 20,
        max_new_tokens=2,
        output_ids=[0, 0],
        faces={"null": 2},
        values=2,
    )
    clean = observation(
        **{**shared, "length": 22},
        role="rescore",
        order=1,
        output_ids=[],
        max_new_tokens=0,
        scored=[-1.0, -2.0],
    )
    case = chosen(cell("T=0", "decode"), [decode, clean]).case
    first, second = (step.requests[0] for step in case.steps)
    assert (first.ignore_eos, first.max_new_tokens, first.score_from) == (True, 2, None)
    assert (list(second.input_ids), second.score_from, second.top_k) == ([1] * 20 + [0, 0], 20, 1)
    now = [replace(decode.answer, output_ids=[7])]
    assert list(case.steps[1].after(now)[0].input_ids) == [1] * 20 + [7]


def test_a_batch_takes_all_its_rows_and_what_fills_the_cache(
    cell: Cells, observation: Any, chosen: Any
) -> None:
    records = []
    for number, prompt in enumerate(("p", "q")):
        own = {
            "probe": "batch",
            "cell": "M=2",
            "group": "M=2#0",
            "prompt": prompt,
            "namespace": f"{prompt}/row",
        }
        cold = {
            "role": "cold",
            "cached_tokens": 0,
            "input_ids": [number + 1] * 193,
            "top": TOP,
            "order": number,
        }
        row = {"role": "row", "expected_cached": 192, "batch": "b", "row": number, "order": 2 + number}
        broken = NAN if prompt == "q" else {"top": TOP, "asked": TOP}
        records += [observation(**own, **cold), observation(**own, **row, **broken)]
    records.sort(key=lambda one: one.order)
    case = chosen(cell("M=2", "batch"), records).case
    assert [len(step.requests) for step in case.steps] == [1, 1, 2]
    assert (case.prompt, case.why) == ("q", "NaN: 1 null")
    assert [one.namespace for one in case.steps[2].requests] == ["$KEY/a", "$KEY/b"]
