"""Servers that have no fault of the model: vacuous ones, which prove nothing, and healthy ones."""

from fidelity.selftest.plans import (
    BATCHES,
    CHUNKED,
    DRAFTS,
    EXACT,
    FEW,
    HITS,
    KV_MODEL,
    SENDS,
    guarded,
    laid,
)
from fidelity.selftest.row import Row

VACUOUS = (
    Row("never-hits", "never-hits", "vacuous", ("F26",), "no hit: cached_tokens 0", "", SENDS, FEW),
    Row(
        "wrong-count", "wrong-count", "vacuous", ("F26",), "cached_tokens 128 instead of 192", "", SENDS, FEW
    ),
    Row("null-counts", "null-counts", "vacuous", ("F26",), "reports no cached_tokens", "", SENDS, FEW),
    Row("no-logprobs", "no-logprobs", "vacuous", ("F26",), "has no logprobs", "", SENDS, FEW),
    Row(
        "no_buffer",
        "none",
        "vacuous",
        ("F26",),
        "no hit: cached_tokens 0",
        "",
        laid(SENDS, {"target": {"strategy": "no_buffer"}}),
        FEW,
    ),
)

CONTROLS = (
    Row("healthy", "none", "control", (), plan=HITS),
    Row("healthy quiz-kv", "none", "control", (), plan=laid(HITS, KV_MODEL)),
    Row("healthy random model", "none", "control", (), plan=laid(HITS, {"target": {"profile": "random"}})),
    Row("healthy, noisy", "none", "control", ("F28",), plan=laid(HITS, {"target": {"noise": 0.1}})),
    Row("healthy batches", "none", "control", (), plan=BATCHES),
    Row("healthy drafts", "none", "control", (), plan=DRAFTS),
    Row("healthy chunks", "none", "control", (), plan=CHUNKED),
    Row("deterministic", "none", "control", (), plan=EXACT, small=laid(EXACT, {"resend": {"controls": [2]}})),
    Row("hit-jitter", "hit-jitter", "control", ("F27",), plan=HITS),
    Row("batch-noise", "batch-noise", "control", ("F28",), plan=HITS),
    Row("batch-noise in batches", "batch-noise", "control", ("F28",), plan=BATCHES),
    Row("split-cold", "split-cold", "control", (), plan=HITS),
    Row("lying-flush", "lying-flush", "control", ("F26",), plan=HITS),
    Row("guard splitk", "split-k-nan", "control", ("F02",), plan=guarded("splitk")),
    Row("guard retreat", "split-k-nan", "control", ("F02",), plan=guarded("retreat")),
)
