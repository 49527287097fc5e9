"""The verdicts of the batch probe on records made by hand."""

from collections.abc import Callable
from typing import Any

import pytest

from fidelity import plan as plans
from fidelity.judging.batch import judge
from fidelity.manifest import ArmRecord
from fidelity.observations import Observation
from fidelity.plan import Thresholds
from fidelity.probes.cells import Cell
from fidelity.verdicts import CellVerdict

SIZES = (1, 2, 4)
PROMPTS = [f"p{n}" for n in range(8)]
SUSPECT = Cell("L=193 tail=1", "suspect", 193, 1, "")
Change = Callable[[dict[str, Any]], None]


def top(first: int, moved: float = 0.0) -> list[tuple[int, float]]:
    """The first token at 0.9, the others beside it; `moved` nats less for each of the others."""
    return [(first, -0.105), *[(first + 100 * n, -3.0 - n - moved) for n in range(1, 5)]]


@pytest.fixture
def judged(observation: Callable[..., Observation]) -> Callable[..., dict[str, CellVerdict]]:
    """The cells of a run of 8 rows for each size, and of a ragged fill of 8. `change(given)` may change what
    is recorded of a row, of a clean prefill (role rescore), or of the ragged fill."""

    def make(
        change: Change = lambda given: None, region: int | None = 1, **over: Any
    ) -> dict[str, CellVerdict]:
        records: list[Observation] = []

        def add(role: str, prompt: int, **own: Any) -> None:
            given: dict[str, Any] = {
                "probe": "batch",
                "role": role,
                "prompt": PROMPTS[prompt],
                "expected_text": f"answer{prompt}",
                "text": f"answer{prompt}",
                "output_ids": [prompt],
                "logprobs": [-0.105],
                "top": [top(prompt)],
                "cached_tokens": 0,
                "expected_cached": 0,
                "tail": None,
            }
            given |= own
            change(given)
            records.append(observation(order=len(records), **given))

        for size in SIZES:
            for number in range(8 // size):
                where = {"cell": f"M={size}", "group": f"M={size}#{number}"}
                rows = range(number * size, number * size + size)
                for prompt in rows:
                    add("cold", prompt, **where)
                for row, prompt in enumerate(rows):
                    hit = {"cached_tokens": 192, "expected_cached": 192, "formed": "log"}
                    add("row", prompt, **where, **hit, batch=f"{size}/{number}", row=row)
                for prompt in rows:
                    clean = {"scored": [-0.105], "scored_top": [[(prompt, -0.105)]]}
                    add("rescore", prompt, **where, **clean, output_ids=[], logprobs=[], top=[])
        for role in ("cold", "hit", "fill", "ragged-hit"):
            for prompt in range(8):
                hit = {"cached_tokens": 192, "expected_cached": 192} if "hit" in role else {}
                formed = {"formed": "log", "batch": "fill"} if role == "fill" else {}
                cell = "ragged rows" if role == "fill" else "ragged fill"
                add(role, prompt, cell=cell, group="ragged fill", **hit, **formed)
        plan = plans.build(
            {"target": {"kind": "process"}, "probes": ["batch"], "batch": {"sizes": SIZES, "rounds": 8}}
            | over
        )
        record = ArmRecord("none", 1, facts={"fault_region": region}, cells=[SUSPECT], prompts=PROMPTS)
        cells = judge(plan, plan.arms[0], record, records, Thresholds())
        return {cell.name: cell for cell in cells}

    return make


def of(cell: str, *roles: str, change: Callable[[dict[str, Any]], Any]) -> Change:
    def apply(given: dict[str, Any]) -> None:
        if given["cell"] == cell and given["role"] in (roles or ("row",)):
            change(given)

    return apply


def states(cells: dict[str, CellVerdict]) -> dict[str, str]:
    return {name: cell.state for name, cell in cells.items() if cell.state != "pass"}


def test_healthy_rows_pass(judged: Callable[..., dict[str, CellVerdict]]) -> None:
    cells = judged()
    assert list(cells) == ["M=1", "M=2", "M=4", "ragged rows", "ragged fill"]
    assert states(cells) == {}
    assert [cells[f"M={size}"].kind for size in SIZES] == ["suspect", "control", "control"]
    assert all(cell.exercised == cell.prompts == 8 for cell in cells.values())


def flip(given: dict[str, Any]) -> None:
    given.update(output_ids=[777], top=[top(777)], text="other")


def another(given: dict[str, Any]) -> None:
    """The row of the next prompt of its batch of two."""
    prompt = given["output_ids"][0] ^ 1
    given.update(output_ids=[prompt], top=[top(prompt)], text="words of neither")


def unlikely(given: dict[str, Any]) -> None:
    given.update(scored=[-9.0], scored_top=[[(900, -0.1)]])


@pytest.mark.parametrize(
    ("cell", "role", "change", "said"),
    [
        ("M=1", "row", flip, "first token is not the cold answer's (off-list"),
        ("M=4", "row", flip, "first token is not the cold answer's (off-list"),
        ("M=2", "row", another, "cross-talk: it answers as the row of p1"),
        ("M=4", "rescore", unlikely, "1 of 1 tokens are not the clean prefill's"),
        ("M=2", "row", lambda given: given.update(faces={"null": 2}), "NaN: 2 null"),
        ("ragged rows", "fill", another, "cross-talk: it answers as the row of p1"),
        ("ragged fill", "ragged-hit", another, "cross-talk: it answers as the row of p1"),
        ("ragged fill", "ragged-hit", flip, "first token is not the cold answer's"),
    ],
)
def test_corrupt_rows_fail_their_own_cell_alone(
    judged: Callable[..., dict[str, CellVerdict]], cell: str, role: str, change: Change, said: str
) -> None:
    cells = judged(of(cell, role, change=change))
    assert states(cells) == {cell: "fail"}
    assert said in cells[cell].reason
    assert cells[cell].corrupt == 8
    assert said in cells[cell].examples[0].why


def test_one_row_of_a_batch_is_enough_and_need_not_be_the_first(
    judged: Callable[..., dict[str, CellVerdict]],
) -> None:
    def last(given: dict[str, Any]) -> None:
        if given["row"] == 3:
            flip(given)

    cells = judged(of("M=4", change=last))
    assert states(cells) == {"M=4": "fail"}
    assert cells["M=4"].corrupt == 2


def test_another_rows_text_is_recognised_where_its_distribution_is_not(
    judged: Callable[..., dict[str, CellVerdict]],
) -> None:
    def change(given: dict[str, Any]) -> None:
        prompt = given["output_ids"][0] ^ 1
        given.update(output_ids=[777], top=[top(777)], text=f"answer{prompt}")

    cells = judged(of("M=2", change=change))
    assert "cross-talk: it answers as the row of p1" in cells["M=2"].reason


def test_a_wrong_answer_of_the_model_itself_is_no_cross_talk(
    judged: Callable[..., dict[str, CellVerdict]],
) -> None:
    def wrong(given: dict[str, Any]) -> None:
        if given["role"] in ("row", "cold") and given["prompt"] == "p0":
            given.update(text="answer1")

    assert states(judged(wrong)) == {}


@pytest.mark.parametrize(
    ("change", "state", "said"),
    [
        ({"formed": "split 1+3"}, "not exercised", "the server ran the rows as 1+3"),
        ({"formed": "overlap"}, "inconclusive", "assumed, not shown, that 8 of 8 rows ran together"),
        ({"formed": "untold"}, "not applicable", "assumed, not shown, that 8 of 8 rows ran together"),
        ({"formed": "metrics"}, "pass", ""),
        ({"alone": False}, "not exercised", "other requests ran at the same time"),
        ({"cached_tokens": 0}, "not exercised", "no hit: cached_tokens 0 instead of 192"),
        ({"cached_tokens": None}, "not exercised", "the server reports no cached_tokens"),
        ({"prompt_tokens": 190}, "not exercised", "prompt_tokens 190 instead of 193"),
        ({"dp_rank": 1}, "not exercised", "DP rank 1 answered, and rank None the cold send"),
        ({"top": []}, "not exercised", "no readable answer to compare"),
        ({"mismatched": True}, "not exercised", "the logprobs are of other tokens"),
    ],
)
def test_rows_that_prove_nothing_are_no_pass(
    judged: Callable[..., dict[str, CellVerdict]], change: dict[str, Any], state: str, said: str
) -> None:
    cells = judged(of("M=4", change=lambda given: given.update(change)))
    assert cells["M=4"].state == state
    assert said in cells["M=4"].reason


def test_hits_on_a_fill_that_was_parted_prove_nothing(judged: Callable[..., dict[str, CellVerdict]]) -> None:
    cells = judged(of("ragged rows", "fill", change=lambda given: given.update(formed="split 4+4")))
    assert states(cells) == {"ragged rows": "not exercised", "ragged fill": "not exercised"}
    cells = judged(of("ragged rows", "fill", change=lambda given: given.update(formed="overlap")))
    assert states(cells) == {"ragged rows": "inconclusive", "ragged fill": "inconclusive"}


def test_a_corrupt_row_fails_however_its_batch_ran(judged: Callable[..., dict[str, CellVerdict]]) -> None:
    def change(given: dict[str, Any]) -> None:
        flip(given)
        given.update(formed="overlap", alone=False)

    assert states(judged(of("M=4", change=change))) == {"M=4": "fail"}


def moved(nats: float) -> Callable[[dict[str, Any]], None]:
    return lambda given: given.update(top=[top(given["output_ids"][0], nats)])


def test_moved_logprobs_of_suspects_fail_and_of_controls_need_an_explanation(
    judged: Callable[..., dict[str, CellVerdict]],
) -> None:
    cells = judged(of("M=1", change=moved(1.0)))
    assert states(cells) == {"M=1": "fail"}
    assert cells["M=1"].reason.startswith("the logprobs moved: mean")
    cells = judged(of("M=4", change=moved(1.0)))
    assert states(cells) == {"M=4": "inconclusive"}
    assert "elevated rows" in cells["M=4"].reason
    assert states(judged(of("ragged fill", "ragged-hit", change=moved(1.0)))) == {"ragged fill": "fail"}
    both = judged(of("ragged fill", "ragged-hit", "hit", change=moved(1.0)))
    assert states(both) == {"ragged fill": "inconclusive"}


def test_what_moves_rows_of_every_size_alike_is_another_kernel(
    judged: Callable[..., dict[str, CellVerdict]],
) -> None:
    def change(given: dict[str, Any]) -> None:
        if given["role"] in ("row", "hit", "ragged-hit"):
            moved(0.2)(given)

    assert states(judged(change)) == {}


def test_few_moved_rows_are_inconclusive(judged: Callable[..., dict[str, CellVerdict]]) -> None:
    def change(given: dict[str, Any]) -> None:
        if given["prompt"] in ("p0", "p1"):
            moved(3.0)(given)

    cells = judged(of("M=1", change=change))
    assert states(cells) == {"M=1": "inconclusive"}
    assert "is not shown to stay within" in cells["M=1"].reason


def test_where_no_size_is_a_control_far_rows_are_inconclusive(
    judged: Callable[..., dict[str, CellVerdict]],
) -> None:
    assert {judged(region=None)[f"M={size}"].kind for size in SIZES} == {"suspect"}
    cells = judged(of("M=1", change=moved(1.0)), region=4)
    assert states(cells) == {"M=1": "inconclusive"}


def test_a_server_of_somebody_else_must_say_that_suspects_were_alone(
    judged: Callable[..., dict[str, CellVerdict]],
) -> None:
    attach = {"kind": "attach", "url": "http://there", "allow_load": True}
    assert states(judged(target=attach)) == {
        "M=1": "inconclusive",
        "ragged rows": "inconclusive",
        "ragged fill": "inconclusive",
    }
    assert states(judged(target=attach | {"assume_idle": True})) == {}


def test_too_few_rows_are_inconclusive(judged: Callable[..., dict[str, CellVerdict]]) -> None:
    cells = judged(batch={"sizes": SIZES, "rounds": 9})
    assert cells["M=1"].state == "inconclusive"
    assert cells["M=1"].reason.startswith("1 of 9 rows did not take the path")


def test_rows_that_begin_alike_are_said(judged: Callable[..., dict[str, CellVerdict]]) -> None:
    def change(given: dict[str, Any]) -> None:
        if given["prompt"] in ("p0", "p1") and given["role"] in ("row", "cold"):
            given.update(output_ids=[0], top=[top(0)])

    cells = judged(of("M=4", "row", "cold", change=change))
    assert cells["M=4"].state == "pass"
    assert "2 of 8 rows begin like another row" in cells["M=4"].notes[0]
    assert not cells["M=2"].notes


def test_of_an_earlier_attempt_only_corruption_counts(judged: Callable[..., dict[str, CellVerdict]]) -> None:
    def earlier(given: dict[str, Any]) -> None:
        given["attempt"] = int(given["group"] != "M=2#0" or given["prompt"] == "p0")

    clean = judged(of("M=2", "row", "cold", "rescore", change=earlier))["M=2"]
    assert (clean.state, clean.sends) == ("inconclusive", 7)

    def corrupt(given: dict[str, Any]) -> None:
        earlier(given)
        if given["prompt"] == "p1" and given["role"] == "row":
            flip(given)

    cell = judged(of("M=2", "row", "cold", "rescore", change=corrupt))["M=2"]
    assert (cell.state, cell.corrupt, cell.sends) == ("fail", 1, 8)
