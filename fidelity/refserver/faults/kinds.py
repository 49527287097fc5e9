"""The faults there are: name, what it does, the public reports it stands for, its keys, where it shows."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Group = Literal["fault", "vacuous", "benign"]


@dataclass(frozen=True)
class Key:
    """One number a fault takes: its default, its range (both ends included), whether it is a whole one."""

    default: float
    low: float
    high: float
    whole: bool = False


@dataclass(frozen=True)
class Kind:
    """`about`: the mechanism in one line. `catalogue`: F-numbers. `shows`: the path on which it is seen.

    A `vacuous` server proves nothing, a `benign` one is healthy; neither is to be called corrupt.
    """

    about: str
    catalogue: tuple[str, ...]
    shows: str
    keys: Mapping[str, Key] = field(default_factory=dict)
    group: Group = "fault"


SHARE = Key(1.0, 0.0, 1.0)  # of prompts
RATE: dict[str, Key] = {"rate": SHARE}

SPLIT_K = ("split-k", "split-k-nan", "split-k-extend")

KINDS: Mapping[str, Kind] = {
    "split-k": Kind(
        "the split expert product adds onto finite leftovers in a block nobody zeroed",
        ("F02",),
        "extends and decodes of few tokens: 1 at cu 16",
        RATE,
    ),
    "split-k-nan": Kind(
        "the same, onto the NaN bits of a freed sort buffer",
        ("F02", "F03", "F23"),
        "extends and decodes of few tokens: 1 at cu 16",
        RATE,
    ),
    "split-k-extend": Kind(
        "split-k on extends only: decode runs another kernel",
        ("F01",),
        "extends of few tokens: 1 at cu 16",
        RATE,
    ),
    "wrong-token-checkpoint": Kind(
        "a prefill keeps the recurrent state of one grid point before the checkpoint",
        ("F06",),
        "hits",
        RATE,
    ),
    "ragged-state": Kind(
        "in a prefill of several requests all but the first keep a state counted from the batch's start",
        ("F08",),
        "hits on prompts cached by a batch, but its first",
        RATE,
    ),
    "stale-conv": Kind(
        "a checkpoint's convolution state is the one that the previous request kept",
        ("F07",),
        "hits",
        RATE,
    ),
    "zeroed-state": Kind(
        "a hit that recomputes at most `suffix` tokens starts from a zero recurrent state",
        ("F09",),
        "hits with a short tail",
        RATE | {"suffix": Key(16, 1, 1_000_000, whole=True)},
    ),
    "no-state": Kind(
        "a hit restores the KV pages and neither recurrent nor convolution state",
        ("F11", "F12"),
        "hits",
        RATE,
    ),
    "shared-page": Kind(
        "the allocator gives a prompt's last page twice: it holds another prompt's keys and values",
        ("F14", "F16"),
        "hits",
        RATE,
    ),
    "kv-scale": Kind(
        "keys and values read back from the prefix cache miss their scale",
        ("F15",),
        "hits",
        RATE | {"scale": Key(0.25, 0.0, 1e6)},
    ),
    "kv-scale-decode": Kind(
        "decoding reads keys and values without their scale",
        ("F18",),
        "decode",
        RATE | {"scale": Key(0.25, 0.0, 1e6)},
    ),
    "drift": Kind(
        "after `after` requests hits get another prompt's state and last page, ever more often up to `rate`",
        ("F10", "F16"),
        "hits late in the server's life",
        {"rate": SHARE, "after": Key(100, 1, 1_000_000, whole=True)},
    ),
    "swapped-row": Kind(
        "in a batch of two or more a request gets the logits row of its neighbour",
        ("F19", "F20"),
        "batches",
        RATE,
    ),
    "chunk-boundary": Kind(
        "each chunk of a chunked prefill but the first starts from an empty recurrent state",
        ("F21",),
        "prefills longer than --chunked-prefill-size",
        RATE,
    ),
    "long-prefill": Kind(
        "the expert kernel writes the first `tokens` rows of an extend and leaves the rest without experts",
        ("F04",),
        "prefills of more than `tokens` tokens, cold ones too",
        RATE | {"tokens": Key(512, 1, 1_000_000, whole=True)},
    ),
    "decode-after": Kind(
        "from the token `after` on decoding does not write the recurrent state back",
        ("F03", "F22"),
        "decode",
        RATE | {"after": Key(8, 1, 1_000_000, whole=True)},
    ),
    "draft": Kind(
        "the draft head reads the hidden state of the forward before: guesses fail, answers stay right",
        ("F02", "F22"),
        "speculative decoding: acceptance",
        RATE,
    ),
    "nan-null": Kind(
        "a hit's recurrent state is memory never written, NaN; logprobs come out as null",
        ("F13", "F23"),
        "hits",
        RATE,
    ),
    "nan-500": Kind("the same; a reply with NaN is HTTP 500", ("F13", "F23"), "hits", RATE),
    "nan-clamped": Kind("the same; NaN logprobs come out as -9999", ("F13", "F23"), "hits", RATE),
    "nan-uniform": Kind(
        "the same; a row of NaN is sanitised to the uniform distribution", ("F23",), "hits", RATE
    ),
    "shifted-logprobs": Kind(
        "the logprobs quoted are those of the row quoted before; tokens are right",
        ("F25",),
        "output logprobs on every path",
        RATE,
    ),
    "shard-logprobs": Kind(
        "the logprobs quoted are normalised over the first of `shards` parts of the vocabulary: the sum over "
        "the ranks of tensor parallelism is left out; tokens are right",
        ("F25",),
        "output logprobs on every path: probabilities above 1",
        RATE | {"shards": Key(8, 2, 64, whole=True)},
    ),
    "all-wrong": Kind(
        "expert outputs are scaled in every layer: the same error cold, on hits and in decode",
        ("F05",),
        "only against a reference",
        {"scale": Key(0.0, 0.0, 1e6)},
    ),
    "never-hits": Kind("the prefix cache finds nothing", ("F26",), "cached_tokens 0", group="vacuous"),
    "wrong-count": Kind(
        "cached_tokens of a hit is one grid step short", ("F26",), "cached_tokens", group="vacuous"
    ),
    "null-counts": Kind("cached_tokens is null", ("F26",), "cached_tokens", group="vacuous"),
    "no-logprobs": Kind("asked-for logprobs are left out", ("F26",), "logprobs", group="vacuous"),
    "lying-flush": Kind(
        "a flush answers 200 and keeps everything", ("F26",), "sends after a flush", group="vacuous"
    ),
    "hit-jitter": Kind(
        "logits of hits carry noise of `sd`, as of another kernel",
        ("F27",),
        "hits",
        {"sd": Key(0.1, 0.0, 100.0)},
        "benign",
    ),
    "batch-noise": Kind(
        "logits carry noise of `sd` that the number of tokens in the forward decides",
        ("F28",),
        "every path",
        {"sd": Key(0.05, 0.0, 100.0)},
        "benign",
    ),
    "split-cold": Kind(
        "prefills are cut at their last grid point: with split-k-extend cold and hit share the fault",
        ("F05",),
        "prefills",
        group="benign",
    ),
}
