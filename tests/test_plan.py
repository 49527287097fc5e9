from pathlib import Path
from typing import Any

import pytest
import yaml

from fidelity import commands
from fidelity.errors import PlanError
from fidelity.paths import data_dir
from fidelity.plan import Arm, RunPlan, build, merge, read_file
from fidelity.plan_probes import ALL_PROBES

SHIPPED = sorted(path.stem for path in data_dir("configs").glob("*.yaml"))
NO_FLAGS: dict[str, Any] = {
    **dict.fromkeys(["prompts", "family", "prompt_folder", "tokenizer", "thinking"]),
    **dict.fromkeys(["hits", "position", "tail", "control", "length"]),
    **dict.fromkeys(["seed", "max_minutes", "fail_fast", "max_rate"]),
    **dict.fromkeys(["probe", "skip", "tokens", "exact", "sweep", "task_file", "task_limit", "max_slowdown"]),
    **dict.fromkeys(["reference", "reference_any_model", "save_reference"]),
}


def test_the_default_plan_bounds_the_rate_at_10_percent() -> None:
    plan = RunPlan()
    assert plan.target.kind == "embedded"
    assert plan.target.fault == "split-k-nan"
    assert plan.arms == (Arm(name="none"),)
    assert (plan.prompts.count, plan.resend.hits) == (30, 2)
    assert (plan.resend.warmup_sends, plan.resend.warmup_tokens) == (16, 256)
    assert (plan.thresholds.max_rate, plan.thresholds.confidence) == (0.10, 0.95)
    assert (plan.thresholds.near_tie, plan.thresholds.sure) == (0.125, 0.9)


@pytest.mark.parametrize(
    ("data", "says", "hint"),
    [
        ({"promts": {}}, "there is no option 'promts'", "did you mean 'prompts'?"),
        ({"prompts": {"cuont": 3}}, "there is no option 'prompts.cuont'", "did you mean 'count'?"),
        (
            {"arms": [{"name": "a", "gaurd": "none"}]},
            "there is no option 'arms.0.gaurd'",
            "did you mean 'guard'?",
        ),
        ({"target": {"zzz": 1}}, "there is no option 'target.zzz'", "cu, deterministic, engine"),
        ({"thresholds": {"max_rates": 0.1}}, "no option 'thresholds.max_rates'", "did you mean 'max_rate'?"),
        (
            {"arms": [{"name": "a", "guard": "spltk"}]},
            "plan.yaml: arms.0.guard: there is no guard 'spltk'",
            "did you mean 'splitk'?",
        ),
        (
            {"target": {"fault": "split"}},
            "target.fault: there is no fault 'split'",
            "did you mean 'split-k'?",
        ),
        (
            {"target": {"fault": "drift,drift"}},
            "target.fault: fault 'drift' is given twice",
            None,
        ),
        ({"target": {"fault": "drift:rat=1"}}, "target.fault: fault drift takes key=value", None),
        ({"probes": ["decod"]}, "probes.0: there is no probe 'decod'", "did you mean 'decode'?"),
        ({"skip": ["desend"]}, "skip.0: there is no probe 'desend'", "did you mean 'resend'?"),
        (
            {"thresholds": {"max_rate": 1.5}},
            "thresholds.max_rate: input should be less than 1 (given: 1.5)",
            None,
        ),
        ({"thresholds": {"confidence": 0.5}}, "greater than 0.5 (given: 0.5)", None),
        ({"prompts": {"count": 0}}, "prompts.count: input should be greater than or equal to 1", None),
        ({"prompts": {"count": "many"}}, "(given: 'many')", None),
        ({"prompts": 30}, "plan.yaml: prompts:", None),
        ({"resend": {"hits": 0}}, "resend.hits", None),
        ({"max_minutes": 0}, "max_minutes", None),
        ({"arms": []}, "arms need at least one entry", None),
        ({"arms": [{"name": "a"}, {"name": "a"}]}, "each with its own name", None),
        ({"arms": [{"name": "a", "baseline": True}]}, "every arm is a baseline", None),
        ({"target": {"kind": "attach"}}, "target.url is needed", None),
        (
            {"target": {"kind": "attach", "url": "http://h"}, "arms": [{"name": "a", "guard": "splitk"}]},
            "guards cannot be applied",
            None,
        ),
        (
            {"target": {"kind": "attach", "url": "http://h"}, "arms": [{"name": "a"}, {"name": "b"}]},
            "a running server is one arm",
            None,
        ),
    ],
)
def test_bad_plans_are_told_by_key_and_value(data: dict[str, Any], says: str, hint: str | None) -> None:
    with pytest.raises(PlanError) as caught:
        build(data, "plan.yaml")
    assert says in caught.value.message
    assert caught.value.message.startswith("plan.yaml: ")
    assert caught.value.exit_code == 2
    if hint:
        assert hint in (caught.value.hint or "")


def test_a_plan_is_fixed_before_the_first_request() -> None:
    plan = RunPlan()
    with pytest.raises(ValueError, match="frozen"):
        plan.seed = 3  # type: ignore[misc]


def test_merge_lays_flags_over_a_file_section_by_section() -> None:
    base = {"seed": 1, "prompts": {"count": 6, "include": ["a/b"]}, "arms": [{"name": "x"}]}
    over = {
        "seed": None,
        "prompts": {"count": 9, "families": None},
        "arms": [{"name": "y"}],
        "resend": {"hits": 1},
    }
    assert merge(base, over) == {
        "seed": 1,
        "prompts": {"count": 9, "include": ["a/b"]},
        "arms": [{"name": "y"}],
        "resend": {"hits": 1},
    }
    assert base["prompts"] == {"count": 6, "include": ["a/b"]}  # untouched


def test_merge_keeps_false_and_zero() -> None:
    assert merge({"seed": 4, "fail_fast": True}, {"seed": 0, "fail_fast": False}) == {
        "seed": 0,
        "fail_fast": False,
    }


def test_flags_that_are_not_given_change_nothing() -> None:
    for name in SHIPPED:
        data = read_file(name)
        assert build(merge(data, commands.flags(**NO_FLAGS))) == build(data)
    assert build(merge({}, commands.flags(**NO_FLAGS))) == RunPlan()


def test_a_bad_section_of_a_file_is_not_lost_under_flags() -> None:
    with pytest.raises(PlanError, match="prompts"):
        build(merge({"prompts": 30}, commands.flags(**NO_FLAGS)))


def test_an_empty_section_of_a_file_is_the_default_one() -> None:
    assert build(merge({"prompts": None}, commands.flags(**NO_FLAGS))) == RunPlan()


def test_flags_reach_the_plan() -> None:
    given = {
        **NO_FLAGS,
        "prompts": 4,
        "hits": 3,
        "position": [128],
        "tail": [1, 2],
        "control": [5],
        "family": ["capital"],
        "thinking": True,
        "seed": 7,
        "max_minutes": 2.5,
        "fail_fast": True,
        "max_rate": 0.2,
        "probe": ["resend", "decode"],
        "skip": ["batch"],
        "tokens": 100,
        "exact": True,
        "sweep": True,
        "max_slowdown": 0.05,
        "reference": "results/trusted",
        "save_reference": Path("mine.jsonl"),
    }
    plan = build(merge({}, commands.flags(**given)))
    assert (plan.prompts.count, plan.prompts.families, plan.prompts.thinking) == (4, ("capital",), True)
    assert (plan.resend.hits, plan.resend.positions) == (3, (128,))
    assert (plan.resend.suspects, plan.resend.controls) == ((1, 2), (5,))
    assert (plan.seed, plan.max_minutes, plan.fail_fast, plan.thresholds.max_rate) == (7, 2.5, True, 0.2)
    assert (plan.exact, plan.speed.max_slowdown, plan.decode_size) == (True, 0.05, (8, 13))
    # A gate of its own and a map are asked for beside the probes that were named.
    assert plan.selected == ("resend", "decode", "sweep", "speed", "reference")
    assert (plan.reference, plan.save_reference) == ("results/trusted", Path("mine.jsonl"))


def test_what_is_probed_by_default_by_name_and_not() -> None:
    assert RunPlan().selected == ("resend", "decode")
    assert RunPlan().decode_size == (6, 64)
    assert build({"probes": ["decode"]}).decode_size == (8, 256)
    assert build({"decode": {"tokens": 100, "prompts": 3}}).decode_size == (3, 34)
    plan = build({"also": ["sweep"], "skip": ["resend"]})
    assert plan.selected == ("decode", "sweep")
    assert list(plan.unprobed) == ["resend", "batch", "draft"]
    every = build(merge({}, commands.flags(**{**NO_FLAGS, "probe": ["all"]})))
    assert every.selected == ALL_PROBES
    assert not every.unprobed


def test_the_shipped_plans() -> None:
    assert {"first-thread", "gate"} <= set(SHIPPED)
    for name in SHIPPED:
        assert any(not arm.baseline for arm in build(read_file(name), name).arms)
    thread = build(read_file("first-thread"))
    assert (thread.prompts.count, thread.resend.hits) == (6, 4)
    assert thread.prompts.include == ("capital/france",)
    assert thread.resend.lengths == (193, 194, 195, 196, 705, 706)
    assert thread.target.fault == "split-k-extend"
    gate = build(read_file("gate"))
    assert gate.prompts.count == 299
    assert gate.thresholds.max_rate == 0.01


def test_a_file_comes_before_a_shipped_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({"seed": 5}))
    assert read_file(str(path)) == {"seed": 5}
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gate").write_text("seed: 6")
    assert read_file("gate") == {"seed": 6}


@pytest.mark.parametrize(
    ("text", "says"),
    [("seed: [", "is not YAML"), ("- a", "holds no plan"), ("", "holds no plan"), ("word", "holds no plan")],
)
def test_files_that_hold_no_plan(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(text)
    with pytest.raises(PlanError, match=says):
        read_file(str(path))


def test_a_missing_file_names_the_nearest_shipped_plan() -> None:
    with pytest.raises(PlanError, match="cannot read the plan gaet") as caught:
        read_file("gaet")
    assert caught.value.hint == "did you mean 'gate'?"


def test_a_plan_survives_being_stored() -> None:
    plan = build({"prompts": {"folder": "some/where"}, "resend": {"lengths": [193]}, "seed": 3})
    assert RunPlan.model_validate(plan.model_dump(mode="json")) == plan
