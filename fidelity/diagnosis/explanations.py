"""What each explanation would make of a condition: the probability that it is corrupt.

The numbers are coarse and only order the explanations. How well they do is in docs/diagnosis.md.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fidelity.diagnosis.conditions import Condition

SURE, LIKELY, OFTEN, OPEN, SELDOM, NEVER = 0.95, 0.8, 0.7, 0.5, 0.2, 0.03

SHORT, FADED = 4, 16
"""Tokens computed after a hit: up to SHORT the answer rests on what was stored; beyond FADED it may rest on
the computed tokens alone."""

AMID = 3
"""Tokens past the checkpoint that end amid the prompt's template, in the checkpoint probe."""

MOST_ROWS = 32
"""The largest batch that aiter's small-batch kernels take."""

STATE, KV = "stored recurrent state", "stored KV"
FILLED_TOGETHER = "states kept by a prefill of several requests"
BOUNDARY = "chunk boundary or long prefill"
CROSS_TALK = "batch cross-talk"
DECODE = "decode only"
DRAFT = "draft only"
DRIFT = "drift with use"
QUOTED = "logprob path only"
COMMON = "common to cold and hit"
COMMON_UNSEEN = f"{COMMON}: not visible here, give --reference"

Expect = Callable[[Condition], float]


@dataclass(frozen=True)
class Explanation:
    """`prior` in nats; `region`: the largest forward of the kernel, in tokens; `stored`: hits are wrong only
    where the model needs what was stored."""

    name: str
    expect: Expect
    prior: float = 0.0
    region: int | None = None
    stored: bool = False


def explanations(found: Sequence[Condition], strategy: str) -> list[Explanation]:
    """Those that these conditions leave room for. `strategy` is the server's prefix cache's."""
    kernels = [kernel(1), *(kernel(size) for size in _sizes(found))]
    if strategy == "attention only":
        kept = [Explanation(KV, _stored, stored=True)]
    else:
        kept = [
            Explanation(STATE, stored_state, stored=True),
            Explanation(KV, stored_kv, -0.1, stored=True),
            Explanation(FILLED_TOGETHER, filled_together),
        ]
    band = _boundary(found)
    referred = any(at.path in ("reference", "reference acceptance") for at in found)
    return [
        *kernels,
        *kept,
        *([] if band is None else [boundary(*band)]),
        Explanation(CROSS_TALK, cross_talk),
        Explanation(DECODE, decode_only),
        Explanation(DRAFT, draft_only),
        Explanation(DRIFT, drift, -0.5),
        Explanation(QUOTED, quoted),
        Explanation(COMMON if referred else COMMON_UNSEEN, common, -0.5),
    ]


def kernel(size: int) -> Explanation:
    """A kernel that is wrong in forwards of up to `size` tokens."""
    name = "one-token forward (M=1) kernel" if size == 1 else f"small-M kernel up to M={size}"

    def expect(at: Condition) -> float:
        if at.path == "region":
            return SURE if at.rows == size else SELDOM
        if at.path in ("hit", "checkpoint"):
            return SURE if at.tail <= size else NEVER
        if at.path == "batch":
            small = at.rows * at.tail <= size if at.tail else False
            # Rows too many for the extend can still be few enough for a decode step.
            return SURE if small else LIKELY if at.rows <= size else NEVER
        own = {"decode": LIKELY, "acceptance": LIKELY, "output": OPEN, "cold": 0.1, "alone": LIKELY}
        # A prefill that is cut can end in a forward as small.
        return {**own, "reference": 0.1, "reference acceptance": LIKELY}.get(at.path, NEVER)

    # The larger the forward, the fewer kernels are chosen for its size.
    return Explanation(name, expect, -0.6 * (size.bit_length() - 1), size)


def stored_state(at: Condition) -> float:
    """The recurrent state that is restored is wrong, perhaps another prompt's: every hit, whatever runs with
    it; a long tail may re-ground the answer. It carries what comes next in a template, too."""
    return LIKELY if at.path == "checkpoint" and at.tail <= AMID else _stored(at)


def stored_kv(at: Condition) -> float:
    """The same of the keys and values of a hybrid, which a token amid a template hardly needs."""
    return (SELDOM if at.tail == 1 else OPEN) if at.path == "checkpoint" and at.tail <= AMID else _stored(at)


def _stored(at: Condition) -> float:
    if at.path in ("hit", "batch"):
        return NEVER if not at.tail else LIKELY if at.tail <= SHORT else OFTEN if at.tail <= FADED else OPEN
    return {"checkpoint": OFTEN, "ragged fill": OPEN, "cross-talk": SELDOM}.get(at.path, NEVER)


def filled_together(at: Condition) -> float:
    return {"ragged fill": SURE, "ragged rows": 0.1}.get(at.path, NEVER)


def cross_talk(at: Condition) -> float:
    if at.path == "batch":
        return SURE if at.rows > 1 else NEVER
    return {"ragged rows": LIKELY, "ragged fill": 0.1, "cross-talk": LIKELY}.get(at.path, NEVER)


def decode_only(at: Condition) -> float:
    return {"decode": SURE, "batch": OPEN, "output": LIKELY, "acceptance": SELDOM}.get(at.path, NEVER)


def draft_only(at: Condition) -> float:
    """Alone, where it drafts one token, or in batches as well, which only a reference shows."""
    return {"acceptance": LIKELY, "reference acceptance": SURE}.get(at.path, NEVER)


def drift(at: Condition) -> float:
    """Hits go wrong, the later the oftener."""
    own = {"order": SURE, "hit": OFTEN, "checkpoint": OFTEN, "batch": OFTEN, "ragged fill": OFTEN}
    return {**own, "cross-talk": OPEN, "ragged rows": SELDOM}.get(at.path, NEVER)


def quoted(at: Condition) -> float:
    """The tokens are right and the logprobs told are others', on every path; a single one may have none
    before it to be taken for."""
    own = {"quoted": SURE, "known": 0.1, "cross-talk": NEVER, "order": NEVER, "alone": NEVER}
    own |= {"hit": OPEN, "cold": OPEN, "reference": OPEN, "reference acceptance": NEVER}
    return own.get(at.path, LIKELY)


def common(at: Condition) -> float:
    own = {"known": SURE, "cold": LIKELY, "quoted": NEVER, "cross-talk": NEVER, "order": NEVER}
    return {**own, "alone": NEVER, "reference": SURE, "reference acceptance": SELDOM}.get(at.path, OPEN)


def boundary(length: int, most: int) -> Explanation:
    """Prefills of more than `length` tokens are wrong; of more than `most` a hit may share it with its cold
    send."""

    def expect(at: Condition) -> float:
        if not at.length:
            # The rows of a ragged fill are as wrong as the cold answers that they are held against.
            own = {
                "ragged fill": LIKELY,
                "ragged rows": OPEN,
                "known": OPEN,
                "alone": SELDOM,
                "decode": SELDOM,
                "output": SELDOM,
                "reference": OPEN,
            }
            return own.get(at.path, NEVER)
        if at.length <= length:
            return NEVER
        if at.path == "reference":
            return SURE
        return OPEN if at.path == "cold" or at.length > most else LIKELY

    return Explanation(BOUNDARY, expect, -0.3)


def _sizes(found: Sequence[Condition]) -> list[int]:
    """Batches of two and more up to which all that was measured is corrupt."""
    sizes = {
        at.rows * at.tail if at.path == "batch" else at.tail
        for at in found
        if at.outcome != "clean" and at.path in ("hit", "checkpoint", "batch")
    }
    return sorted(size for size in sizes if 2 <= size <= MOST_ROWS)


def _boundary(found: Sequence[Condition]) -> tuple[int, int] | None:
    """The largest clean length below every corrupt one, and the largest corrupt one."""
    lengths = [at for at in found if at.length]
    # The checkpoint probe's lengths differ by their tail alone.
    bad = [at.length for at in lengths if at.outcome != "clean" and at.path != "checkpoint"]
    good = [at.length for at in lengths if at.outcome == "clean"]
    below = [length for length in good if length < min(bad, default=0)]
    return (max(below), max(bad)) if below else None
