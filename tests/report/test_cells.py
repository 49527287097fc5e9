from dataclasses import replace

from fidelity.report.cells import examples, side_by_side
from fidelity.verdicts import RunVerdict


def test_rows_are_conditions_suspects_first(make_cell, make_run) -> None:
    floor = make_cell(name="L=193 cold", kind="floor")
    control = make_cell(name="L=194 tail=2", kind="control")
    rows = side_by_side(make_run(floor, control, make_cell()))
    assert [row[0].kind for row in rows if row[0]] == ["suspect", "control", "floor"]


def test_a_condition_that_an_arm_lacks_leaves_its_place_empty(two_arms: RunVerdict) -> None:
    (first, second) = two_arms.arms
    shorter = replace(two_arms, arms=(replace(first, cells=first.cells[:1]), second))
    assert [[cell and cell.arm for cell in row] for row in side_by_side(shorter)] == [
        ["none", "splitk"],
        [None, "splitk"],
    ]


def test_arms_take_turns_and_a_prompt_shows_once(make_cell, make_arm, make_verdict, example) -> None:
    cells = {
        name: make_cell(arm=name, examples=(example("a"), example("a"), example("b")))
        for name in ("one", "two")
    }
    verdict = make_verdict(*(make_arm(cell, name=name) for name, cell in cells.items()))
    found = [(cell.arm, shown.prompt) for cell, shown in examples(verdict, 3)]
    assert found == [("one", "a"), ("two", "a"), ("one", "b")]
