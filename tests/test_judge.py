"""From cells to the verdict of each arm and of the run, and to the exit code."""

from collections.abc import Callable
from typing import Any

import pytest

from fidelity.judge import judge, label
from fidelity.manifest import ArmRecord, Manifest
from fidelity.observations import Observation
from fidelity.plan import build
from fidelity.probes.cells import Cell
from fidelity.verdicts import COULD_NOT_RUN, FAIL, INCONCLUSIVE, PASS, RunVerdict

TAIL_1 = Cell("L=193 tail=1", "suspect", 193, 1, "why")
TAIL_33 = Cell("L=225 tail=33", "control", 225, 33, "why")
FLIP = {"output_ids": [6], "text": "Rome", "top": [[(6, -0.1), (5, -3.0)]]}
MISS = {"cached_tokens": 0}
FACTS = {"engine": "sglang", "version": "0.5.21", "model": "tiny", "simulated": False}

Judged = Callable[..., RunVerdict]


@pytest.fixture
def judged(observation: Any) -> Judged:
    """Judge arms of 30 prompts in two cells; `arms` gives what is odd about the hits at tail 1."""

    def records(arm: str, odd: dict[str, Any]) -> list[Observation]:
        made = []
        for cell in (TAIL_1, TAIL_33):
            change = odd if cell is TAIL_1 else {}
            for n in range(30):
                shared = {"arm": arm, "prompt": f"a/{n}", "group": f"a/{n}@{cell.length}", "cell": cell.name}
                counts = {"length": cell.length, "prompt_tokens": cell.length, "tail": cell.tail}
                for role in ("cold", "cold2", "hit"):
                    cached = {"cached_tokens": 192 if role == "hit" else 0}
                    given = {**shared, **counts, **cached, "role": role, **(change if role == "hit" else {})}
                    made.append(observation(**given))
        return made

    def run(
        arms: dict[str, dict[str, Any]],
        *,
        baseline: str = "",
        status: str = "complete",
        unmeasured: str = "",
        **manifest: Any,
    ) -> RunVerdict:
        entries = [{"name": name, "baseline": name == baseline} for name in [*arms, *unmeasured.split()]]
        made = Manifest("r", "s", build({"probes": ["resend"], "arms": entries}), status=status, **manifest)
        for name in arms:
            made.arms[name] = ArmRecord("none", 1, cells=[TAIL_1, TAIL_33], facts=FACTS, seconds=2.5)
        return judge(made, [record for name, odd in arms.items() for record in records(name, odd)])

    return run


def test_a_pass_says_what_it_excludes(judged: Judged) -> None:
    verdict = judged({"none": {}})
    assert (verdict.state, verdict.exit_code) == (PASS, 0)
    assert verdict.bound == "0 corrupt prompts of 30: at most 10 % at 95 %"
    assert not verdict.partial
    (arm,) = verdict.arms
    assert [cell.name for cell in arm.cells] == [
        "L=193 tail=1",
        "L=225 tail=33",
        "L=193 cold",
        "L=225 cold",
    ]
    assert {cell.state for cell in arm.cells} == {PASS}
    assert (arm.server, arm.requests, arm.failed_requests, arm.seconds) == (
        "sglang 0.5.21, tiny",
        180,
        0,
        2.5,
    )
    assert (arm.cold_right, arm.cold_known) == (60, 60)
    assert verdict.not_exercised == (
        "not asked for: single-request decode (--probe decode), batches (--probe batch), speculative "
        "decoding (--probe draft)",
    )


@pytest.mark.parametrize(
    ("odd", "state", "code", "reason"),
    [
        (FLIP, FAIL, 10, "arm none: L=193 tail=1: 30 corrupt prompts of 30: at least 90.5% at 95%"),
        (
            MISS,
            INCONCLUSIVE,
            11,
            "arm none: L=193 tail=1 not exercised: no hit: cached_tokens 0 instead of 192",
        ),
    ],
)
def test_one_bad_cell_decides(
    odd: dict[str, Any], state: str, code: int, reason: str, judged: Judged
) -> None:
    verdict = judged({"none": odd})
    assert (verdict.state, verdict.exit_code) == (state, code)
    assert verdict.reason.startswith(reason)
    assert verdict.bound == ""


def test_what_was_not_exercised_is_listed(judged: Judged) -> None:
    first, *_ = judged({"none": MISS}).not_exercised
    assert first == "arm none, L=193 tail=1: no hit: cached_tokens 0 instead of 192 (30 sends)"


@pytest.mark.parametrize(
    ("arms", "state"),
    [
        ({"a": {}, "b": {}}, PASS),
        ({"a": {}, "b": FLIP}, FAIL),
        ({"a": MISS, "b": FLIP}, FAIL),
        ({"a": MISS, "b": {}}, INCONCLUSIVE),
    ],
)
def test_the_run_is_the_worst_of_its_arms(arms: dict[str, Any], state: str, judged: Judged) -> None:
    assert judged(arms).state == state


def test_a_baseline_arm_is_shown_and_never_decides(judged: Judged) -> None:
    verdict = judged({"none": FLIP, "splitk": {}}, baseline="none")
    assert (verdict.state, verdict.exit_code) == (PASS, 0)
    assert [arm.state for arm in verdict.arms] == [FAIL, PASS]
    assert verdict.bound == "0 corrupt prompts of 30: at most 10 % at 95 %"
    assert verdict.warnings == ()


def test_a_baseline_that_passes_is_a_warning(judged: Judged) -> None:
    verdict = judged({"none": {}, "splitk": {}}, baseline="none")
    assert verdict.state == PASS
    assert verdict.warnings == (
        "baseline arm none passes: the fault it stands for does not show on this server",
    )
    failing = judged({"none": {}, "splitk": FLIP}, baseline="none")
    assert failing.exit_code == 10


@pytest.mark.parametrize(
    ("status", "odd", "state", "code"),
    [
        ("complete", {}, PASS, 0),
        ("out of time", {}, INCONCLUSIVE, 11),
        ("stopped at the first proof", {}, INCONCLUSIVE, 11),
        ("stopped at the first proof", FLIP, FAIL, 10),
        ("out of time", FLIP, FAIL, 10),
        ("running", {}, INCONCLUSIVE, 11),  # killed: the manifest never heard how it ended
        ("interrupted", {}, INCONCLUSIVE, 130),
        ("interrupted", FLIP, FAIL, 130),
        ("failed", FLIP, FAIL, 10),  # what was seen before the server went is proof all the same
    ],
)
def test_a_run_that_did_not_end_by_itself_is_never_a_pass(
    status: str, odd: dict[str, Any], state: str, code: int, judged: Judged
) -> None:
    verdict = judged({"none": odd}, status=status)
    assert (verdict.state, verdict.exit_code) == (state, code)
    assert verdict.partial is (status != "complete")


@pytest.mark.parametrize("code", [3, 2])
def test_a_failed_run_has_the_code_of_its_error(code: int, judged: Judged) -> None:
    verdict = judged({"none": {}}, status="failed", error="the server stopped answering", exit_code=code)
    assert (verdict.state, verdict.exit_code) == (COULD_NOT_RUN, code)
    assert verdict.reason == "the server stopped answering"


def test_an_arm_that_was_never_reached_is_inconclusive(judged: Judged) -> None:
    verdict = judged({"none": {}}, unmeasured="splitk")
    assert verdict.state == INCONCLUSIVE
    assert verdict.arms[1].reason == "not exercised: nothing was measured"
    assert verdict.arms[1].server == "not reached"
    assert "arm splitk: nothing was measured" in verdict.not_exercised


def test_an_unsure_model_is_told(judged: Judged, observation: Any) -> None:
    made = Manifest("r", "s", build({"probes": ["resend"]}), status="complete")
    made.arms["none"] = ArmRecord("none", 1, cells=[TAIL_1], unsure=True, replaced=["a/9: why"])
    arm = judge(made, []).arms[0]
    assert arm.unsure
    assert arm.reason.endswith("unsure model: too few prompts had a clear answer")
    assert arm.replaced == ("a/9: why",)


@pytest.mark.parametrize(
    ("text", "right"),
    [("Paris", 1), ("Par", 1), (" Paris", 1), ("Rome", 0), ("", 0), (None, 0), ("Parish", 0)],
)
def test_a_cold_answer_is_right_when_the_known_one_begins_with_it(
    text: str | None, right: int, observation: Any
) -> None:
    made = Manifest("r", "s", build({"probes": ["resend"]}), status="complete")
    made.arms["none"] = ArmRecord("none", 1, cells=[TAIL_1])
    arm = judge(made, [observation(role="cold", group="g", text=text)]).arms[0]
    assert (arm.cold_right, arm.cold_known) == (right, 1)


def test_failed_requests_are_counted_and_a_nan_is_none_of_them(observation: Any) -> None:
    made = Manifest("r", "s", build({"probes": ["resend"]}), status="complete")
    made.arms["none"] = ArmRecord("none", 1, cells=[TAIL_1])
    records = [
        observation(role="warmup", status=429, error="HTTP 429"),
        observation(role="hit", status=500, error="HTTP 500", faces={"http nan": 1}),
        observation(role="cold", arm="another"),
    ]
    arm = judge(made, records).arms[0]
    assert (arm.requests, arm.failed_requests) == (2, 1)


def test_the_label_cannot_be_taken_for_another_machines(judged: Judged) -> None:
    assert judged({"none": {}}).label.startswith("SIMULATED")  # an embedded target
    attached = build({"target": {"kind": "attach", "url": "http://h"}})
    manifest = Manifest("r", "s", attached)
    assert label(manifest) == "no server was reached at http://h"
    manifest.arms["none"] = ArmRecord("none", 1, facts=FACTS)
    assert label(manifest) == "sglang 0.5.21 serving tiny, as the server reports itself"
    manifest.arms["none"].facts = {**FACTS, "simulated": True}
    assert label(manifest).startswith("SIMULATED")
