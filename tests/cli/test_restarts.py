"""Speed and equivalence on the embedded engine: both arms started twice, in the order A B B A."""

from pathlib import Path

from .conftest import run_command

PLAN = """
target: {kind: embedded, model: embedded, fault: split-k-nan, noise: 0.003}
arms: [{name: none, guard: none, baseline: true}, {name: splitk, guard: splitk}]
probes: [speed, equivalence]
resend: {warmup_sends: 1, warmup_tokens: 4}
speed: {prompts: 3, tokens: 6, concurrency: [2]}
equivalence: {prompts: 4, lengths: [65]}
"""


def test_a_guard_is_timed_and_changes_no_healthy_path(tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").write_text(PLAN)
    done = run_command(tmp_path, "run", "--config", "plan.yaml")
    assert done.code == 0, done.out + done.err
    sent = done.observations
    visits = dict.fromkeys((obs["arm"], obs["visit"]) for obs in sent)
    assert list(visits) == [("none", 1), ("splitk", 1), ("splitk", 2), ("none", 2)]
    speed, equal = done.summary["comparisons"]
    # How long anything took is this machine's affair; that it took time, and in which order, is not.
    rows = {row["name"]: row for row in speed["rows"]}
    assert list(rows)[:4] == ["TTFT cold", "TTFT of a cache hit", "TPOT", "tokens/s, one request"]
    assert {"TPOT at c=2", "tokens/s at c=2"} <= set(rows)
    assert all(row["n"] == 3 and row["first"] > 0 and 0 < row["low"] <= row["high"] for row in rows.values())
    assert speed["state"] == "shown"
    # Decode of one request is what this fault breaks: the unguarded arm's speed is of garbage.
    assert "warm-up answers of none are corrupt" in speed["reason"]
    assert "of splitk are corrupt" not in speed["reason"]
    assert equal["state"] == "pass", equal["reason"]
    move = next(row for row in equal["rows"] if row["name"].endswith("p50"))
    # The noise of a restart is there, and the guard adds nothing to it.
    assert 0 < move["first"] < 0.05
    assert move["second"] < 3 * move["first"]
    hits = [obs for obs in sent if obs["role"] == "hit"]
    assert len(hits) == 12
    assert {obs["answer"]["cached_tokens"] for obs in hits} == {192}
    for obs in sent:
        if obs["role"] in ("single", "wave"):
            assert 0 < obs["answer"]["first_token"] < obs["answer"]["latency"]
            assert len(obs["answer"]["output_ids"]) == 6
