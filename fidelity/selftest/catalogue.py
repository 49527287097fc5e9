"""The faults of the embedded engine, each with the smallest plan that catches it, and healthy and vacuous
servers beside them. F-numbers are those of docs/embedded-engine.md."""

from fidelity.diagnosis.explanations import (
    BOUNDARY,
    COMMON,
    CROSS_TALK,
    DECODE,
    DRAFT,
    DRIFT,
    FILLED_TOGETHER,
    KV,
    QUOTED,
    STATE,
    kernel,
)
from fidelity.selftest.controls import CONTROLS, VACUOUS
from fidelity.selftest.plans import (
    BATCHES,
    CHUNKED,
    DECODED,
    DRAFTS,
    FEW,
    FEW_DECODED,
    HITS,
    KV_MODEL,
    LONG,
    LONGER,
    MANY,
    MORE,
    ONE_LENGTH,
    RECALL,
    SENDS,
    WIDE,
    laid,
)
from fidelity.selftest.row import Row

ONE_TOKEN = kernel(1).name
TAIL_1 = r"resend L=193 tail=1"

FAULTS = (
    Row("split-k-nan", "split-k-nan", "fault", ("F02", "F03", "F23"), TAIL_1, ONE_TOKEN, HITS, FEW),
    Row("split-k", "split-k", "fault", ("F02",), TAIL_1, ONE_TOKEN, HITS, FEW),
    Row("split-k-extend", "split-k-extend", "fault", ("F01",), TAIL_1, ONE_TOKEN, HITS, FEW),
    Row(
        "split-k, 64 units",
        "split-k",
        "fault",
        ("F02",),
        "resend L=196 tail=4",
        kernel(4).name,
        laid(WIDE, {"target": {"cu": 64}}),
        FEW,
    ),
    Row(
        "split-k-nan in decode",
        "split-k-nan",
        "fault",
        ("F02", "F03"),
        "decode T=0",
        ONE_TOKEN,
        DECODED,
        FEW_DECODED,
    ),
    Row("split-k in drafts", "split-k", "fault", ("F02", "F22"), "draft acceptance", DRAFT, DRAFTS),
    Row(
        "wrong-token-checkpoint",
        "wrong-token-checkpoint",
        "fault",
        ("F06",),
        TAIL_1,
        STATE,
        laid(HITS, MANY),
        MORE,
    ),
    Row(
        "stale-conv",
        "stale-conv",
        "fault",
        ("F07",),
        TAIL_1,
        STATE,
        laid(HITS, MANY, {"target": {"profile": "random"}}),
        MORE,
        partly={},
    ),
    Row("ragged-state", "ragged-state", "fault", ("F08",), "batch ragged fill", FILLED_TOGETHER, BATCHES),
    Row("zeroed-state", "zeroed-state", "fault", ("F09",), TAIL_1, STATE, HITS, FEW),
    Row("no-state", "no-state", "fault", ("F11", "F12"), TAIL_1, STATE, HITS, FEW),
    Row("no-state, code word", "no-state", "fault", ("F12",), TAIL_1, STATE, laid(HITS, RECALL), FEW),
    Row("nan-null", "nan-null", "fault", ("F13", "F23"), f"{TAIL_1}: .*NaN", STATE, HITS, FEW),
    Row("nan-500", "nan-500", "fault", ("F13", "F23"), f"{TAIL_1}: .*NaN", STATE, HITS, FEW),
    Row("nan-clamped", "nan-clamped", "fault", ("F13", "F23"), f"{TAIL_1}: .*not a number", STATE, HITS, FEW),
    Row("nan-uniform", "nan-uniform", "fault", ("F23",), f"{TAIL_1}: .*flat row", STATE, HITS, FEW),
    Row(
        "split-k-nan, no logprobs",
        "split-k-nan,no-logprobs",
        "fault",
        ("F03",),
        "decode T=0: .*run of one id",
        "",
        DECODED,
        FEW_DECODED,
    ),
    Row(
        "shared-page",
        "shared-page",
        "fault",
        ("F14", "F16"),
        "resend L=195 tail=3",
        KV,
        laid(HITS, MANY, KV_MODEL, RECALL, {"resend": {"suspects": [3]}}),
        MORE,
    ),
    Row("kv-scale", "kv-scale", "fault", ("F15",), TAIL_1, KV, laid(HITS, KV_MODEL), FEW),
    Row(
        "kv-scale-decode",
        "kv-scale-decode",
        "fault",
        ("F18",),
        "decode T=0",
        DECODE,
        laid(DECODED, KV_MODEL),
        FEW_DECODED,
    ),
    Row(
        "drift",
        "drift:after=150",
        "fault",
        ("F10", "F16"),
        "(resend L=|checkpoint from 192)",
        DRIFT,
        laid(HITS, MANY),
        {"prompts": {"count": 16}, "resend": {"hits": 2}},
        "drift:after=40",
    ),
    Row(
        "swapped-row",
        "swapped-row",
        "fault",
        ("F19", "F20"),
        "batch M=[2-9]: .*cross-talk",
        CROSS_TALK,
        BATCHES,
    ),
    Row("chunk-boundary", "chunk-boundary", "fault", ("F21",), "resend L=129 tail=1", BOUNDARY, CHUNKED, FEW),
    Row(
        "long-prefill",
        "long-prefill:tokens=200",
        "fault",
        ("F04",),
        "decode T=0",
        BOUNDARY,
        LONG,
        laid(FEW, LONGER),
    ),
    Row("decode-after", "decode-after", "fault", ("F03", "F22"), "decode T=0", DECODE, DECODED, FEW_DECODED),
    Row("decode-after, speculative", "decode-after", "fault", ("F22",), "draft output", DECODE, DRAFTS),
    Row("shifted-logprobs", "shifted-logprobs", "fault", ("F25",), "decode T=0", QUOTED, HITS, FEW),
    Row(
        "shifted-logprobs in re-sends",
        "shifted-logprobs",
        "fault",
        ("F25",),
        "screening: .*not the top",
        QUOTED,
        SENDS,
        FEW,
    ),
    Row("shard-logprobs", "shard-logprobs", "fault", ("F25",), r"L=193 cold: .*above 1", QUOTED, SENDS, FEW),
    Row(
        "zeroed-state under jitter",
        "zeroed-state,hit-jitter",
        "fault",
        ("F09", "F27"),
        TAIL_1,
        STATE,
        HITS,
        FEW,
    ),
)

SHARED = "L=193 tail=1: .*wrong even cold at 193 tokens and right at"

BLIND_PAIRS = (
    Row(
        "split-cold, split-k-extend",
        "split-cold,split-k-extend",
        "blind pair",
        ("F01",),
        SHARED,
        ONE_TOKEN,
        HITS,
        FEW,
    ),
    Row(
        "split-cold, split-k-nan",
        "split-cold,split-k-nan",
        "blind pair",
        ("F02",),
        SHARED,
        ONE_TOKEN,
        HITS,
        FEW,
    ),
    Row(
        "split-cold, sanitised NaN, one length",
        "split-cold,split-k-nan,nan-uniform:rate=0",
        "blind pair",
        ("F02", "F23"),
        "L=193 cold: .*flat row",
        "",
        ONE_LENGTH,
        FEW,
    ),
)
"""The last has no other length to compare with: an absolute rule is all there is."""

FOR_A_REFERENCE = (
    Row(
        "all-wrong", "all-wrong", "reference", ("F05",), "L=193 cold against the reference", COMMON, HITS, FEW
    ),
    Row(
        "long-prefill of hits",
        "long-prefill:tokens=200",
        "reference",
        ("F04",),
        "L=225 cold against the reference",
        BOUNDARY,
        SENDS,
        FEW,
    ),
    Row(
        "draft",
        "draft",
        "reference",
        ("F02", "F22"),
        "acceptance against the reference",
        DRAFT,
        laid(DRAFTS, KV_MODEL),
    ),
)
"""What no cell of one server can tell from a healthy one: cold and cached answers share it. Each is held
against the same plan's run on a healthy server."""

ROWS = (*FAULTS, *BLIND_PAIRS, *FOR_A_REFERENCE, *VACUOUS, *CONTROLS)

OUT_OF_REACH = (
    (
        "F12",
        "KV through a connector to another node or store",
        "two stores are needed; KV without state is no-state",
    ),
    (
        "F16",
        "disaggregated prefill and decode",
        "two servers are needed; a page that is another's is shared-page",
    ),
    (
        "F17",
        "a second cache tier (L3, HiCache)",
        "the embedded engine has one tier; a wrong page is shared-page",
    ),
    ("F24", "a tiered cache after weeks of misses", "neither the tiers nor the weeks; a late onset is drift"),
)
"""F-number, what it is, and why no single embedded server can show it."""
