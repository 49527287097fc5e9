"""The diagnosis on the embedded engine: which hypothesis comes first for each fault."""

from pathlib import Path
from typing import Any

import pytest

from fidelity.diagnosis import explanations as named

from .conftest import Done, run_command

PLAN = """
target: {{kind: embedded, model: embedded, fault: "{fault}", {target}}}
probes: [{probes}]
prompts: {{count: {count}, include: []}}
resend: {{warmup_sends: 4, warmup_tokens: 64, hits: 1}}
decode: {{prompts: 5, tokens: 160, sampling: false}}
batch: {{sizes: [1, 2, 5], rounds: 5, tokens: 4, ragged: 5}}
checkpoint: {{prompts: 5}}
seed: {seed}
"""
WHOLE = "resend, decode, batch, checkpoint"
ONE_TOKEN = named.kernel(1).name

EXPECTED: dict[str, tuple[str, dict[str, Any]]] = {
    "split-k": (ONE_TOKEN, {}),
    "split-k-nan": (ONE_TOKEN, {}),
    "split-k-extend": (ONE_TOKEN, {}),
    "split-k at 32": ("small-M kernel up to M=2", {"fault": "split-k", "target": "cu: 32"}),
    "split-k at 64": ("small-M kernel up to M=4", {"fault": "split-k", "target": "cu: 64"}),
    "split-cold,split-k-extend": (ONE_TOKEN, {}),
    "split-k in drafts": (
        named.DRAFT,
        {"fault": "split-k", "target": "speculative: true", "probes": "draft"},
    ),
    "wrong-token-checkpoint": (named.STATE, {}),
    "stale-conv": (named.STATE, {"target": "profile: random"}),
    "ragged-state": (named.FILLED_TOGETHER, {}),
    "zeroed-state": (named.STATE, {}),
    "no-state": (named.STATE, {}),
    "nan-null": (named.STATE, {}),
    "nan-500": (named.STATE, {}),
    "nan-clamped": (named.STATE, {}),
    "nan-uniform": (named.STATE, {}),
    "shared-page": (named.KV, {"target": "profile: quiz-kv"}),
    "kv-scale": (named.KV, {"target": "profile: quiz-kv"}),
    "kv-scale-decode": (named.DECODE, {"target": "profile: quiz-kv"}),
    "drift:after=40": (named.DRIFT, {"count": 12}),
    "swapped-row": (named.CROSS_TALK, {}),
    "chunk-boundary": (
        named.BOUNDARY,
        {"target": "flags: [--chunked-prefill-size, '128']", "probes": "resend, sweep"},
    ),
    "long-prefill:tokens=200": (named.BOUNDARY, {"target": "profile: quiz-kv"}),
    "decode-after": (named.DECODE, {}),
    "shifted-logprobs": (named.QUOTED, {}),
    "none": ("none", {}),
    "none, quiz-kv": ("none", {"fault": "none", "target": "profile: quiz-kv"}),
    "hit-jitter": ("none", {}),
    "batch-noise": ("none", {}),
}
"""What should stand first for each fault, and how its plan differs: the rows of docs/diagnosis.md."""

SEED = 1
"""The rules were set on runs of seed 0."""


def run(
    folder: Path, fault: str, target: str = "cu: 16", probes: str = WHOLE, count: int = 6, seed: int = 0
) -> Done:
    plan = PLAN.format(fault=fault, target=target, probes=probes, count=count, seed=seed)
    (folder / "plan.yaml").write_text(plan)
    return run_command(folder, "run", "--config", "plan.yaml")


def first(done: Done) -> str:
    return next((one["name"] for one in done.arm("none")["hypotheses"]), "none")


def test_the_first_thread_is_named_with_its_evidence(tmp_path: Path) -> None:
    done = run(tmp_path, "split-k-extend", probes="resend, checkpoint")
    assert done.code == 10, done.err
    assert first(done) == ONE_TOKEN
    said = " ".join(done.out.split())
    assert f"hypothesis, no finding: {ONE_TOKEN}" in said
    assert "would explain what is corrupt: L=193 tail=1, checkpoint from 192: +1" in said
    report = (done.directory / "report.md").read_text()
    assert "### What would explain arm none" in report
    assert f"1. **{ONE_TOKEN}**" in report
    assert done.cell("from 192: +1")["state"] == "fail"
    assert [done.cell(f"from 192: +{tail}")["state"] for tail in (2, 3, 4)] == ["pass"] * 3


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPECTED)
def test_each_fault_has_its_hypothesis_first(tmp_path: Path, name: str) -> None:
    expected, over = EXPECTED[name]
    done = run(tmp_path, **{"fault": name, "seed": SEED, **over})
    assert done.code in (10, 11), done.err
    assert first(done) == expected
