"""Simulated servers: no HTTP, no model, only the next-token distributions that a run would record.

A prompt has 64 candidate ids: one holds 0.90 to 0.99 of the probability, as screening demands, the rest falls
off like rank^-1.5. A send adds noise to the logits, in nats:

    cold   own draw of `run` for each id
    hit    the same, plus `path`: drawn once for each (prompt, cell), as other kernels round the same way
           each time
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fidelity.observations import Answer, Observation
from fidelity.probes.cells import Cell

Array = npt.NDArray[np.float64]

IDS = 64
TOP_K = 20
POSITION = 192
BF16_STEP = 0.125
SUSPECT, NEAR, FAR = 1, 2, 33

RUN, PATH = 0.072, 0.270
"""Standard deviations of the threads' noise: KL(cold || cold) 6e-4 and KL(cold || hit) 5e-3 on average."""

TIES = 0.02
"""Share of prompts whose first two ids are within one bf16 step: 0.3 to 1.3 % of sends flip."""

JUMP_RATE = 5e-4
JUMP = 20.0


@dataclass(frozen=True)
class Corruption:
    """What happens to the suspect hits of a prompt, each prompt with probability `rate`. `form`: nan, salad
    or bias; a bias takes `nats` off the logit of the leading id."""

    form: str
    rate: float
    nats: float = 0.0


@dataclass(frozen=True)
class Server:
    """`noise`: zero, threads, quantised or heavy-tailed."""

    noise: str
    corruption: Corruption | None = None


def cells(tails: Sequence[int] = (SUSPECT, NEAR, FAR), suspects: int = 1) -> list[Cell]:
    """Cells at one position, the first ones suspects; by default those of the default plan."""
    return [
        Cell(
            f"L={POSITION + tail} tail={tail}",
            "suspect" if number < suspects else "control",
            POSITION + tail,
            tail,
            "simulated",
        )
        for number, tail in enumerate(tails)
    ]


def observe(
    server: Server, prompts: int, hits: int, plan: Sequence[Cell], rng: np.random.Generator
) -> list[Observation]:
    """One run: every send of `prompts` prompts in each cell of the plan, as it would be recorded."""
    logprobs, bad = distributions(server, prompts, len(plan), hits, rng)
    corruption = server.corruption
    order = np.argsort(-logprobs, axis=-1)[..., :TOP_K]
    values = np.take_along_axis(logprobs, order, axis=-1)
    asked = np.take_along_axis(logprobs, np.broadcast_to(order[:, :, :1], order.shape), axis=-1)
    ids, rows, told = order.tolist(), values.tolist(), asked.tolist()
    records: list[Observation] = []
    for number, cell in enumerate(plan):
        for prompt in range(prompts):
            cold_ids = ids[prompt][number][0]
            for send, role in enumerate(("cold", "cold2", *["hit"] * hits)):
                if role == "hit" and number == 0 and bad[prompt] and corruption and corruption.form != "bias":
                    answer = _nan() if corruption.form == "nan" else _salad(cold_ids, rng)
                else:
                    answer = _answer(ids[prompt][number][send], rows[prompt][number][send])
                    if role != "cold":
                        answer.asked = [list(zip(cold_ids, told[prompt][number][send], strict=True))]
                answer.prompt_tokens = cell.length
                answer.cached_tokens = cell.position if role == "hit" else 0
                records.append(_record(len(records), role, cell, prompt, answer))
    return records


def distributions(
    server: Server, prompts: int, count: int, hits: int, rng: np.random.Generator
) -> tuple[Array, npt.NDArray[np.bool_]]:
    """Log-probabilities [prompt, cell, send, id], and which prompts are corrupt. The first two sends are
    cold, the first cell is the suspect; a bias is in them, NaN and salad are not."""
    shape = (prompts, count, 2 + hits, IDS)
    base = _base(prompts, rng)
    noise = np.zeros(shape)
    if server.noise in ("threads", "heavy-tailed"):
        noise = RUN * rng.standard_normal(shape)
        noise[:, :, 2:] += PATH * rng.standard_normal((prompts, count, 1, IDS))
    elif server.noise == "quantised":
        noise[:, :, 2:] += _quantised(base, count, rng)
    if server.noise == "heavy-tailed":
        noise[rng.random(shape) < JUMP_RATE] -= JUMP
    if server.noise != "zero":
        _make_ties(base, noise, rng)
    bad = np.zeros(prompts, dtype=bool)
    if server.corruption is not None:
        bad = rng.random(prompts) < server.corruption.rate
        if server.corruption.form == "bias":
            noise[bad, 0, 2:, 0] -= server.corruption.nats
    return _normalised(base[:, None, None, :] + noise), bad


def _base(prompts: int, rng: np.random.Generator) -> Array:
    rest = rng.uniform(0.01, 0.10, (prompts, 1))
    shares = np.arange(1.0, IDS) ** -1.5
    base: Array = np.log(np.hstack([1 - rest, rest * shares / shares.sum()]))
    return base


def _quantised(base: Array, count: int, rng: np.random.Generator) -> Array:
    """Path noise of KL 2e-5 to 2e-3 a prompt, one id of each cell off by up to 0.9 nat."""
    prompts = len(base)
    offset = rng.standard_normal((prompts, count, 1, IDS))
    single = rng.integers(5, IDS, (prompts, count, 1, 1))
    p = np.exp(base)[:, None, None, :]
    variance = (p * offset**2).sum(-1, keepdims=True) - (p * offset).sum(-1, keepdims=True) ** 2
    target = 10 ** rng.uniform(np.log10(2e-5), np.log10(2e-3), (prompts, count, 1, 1))
    offset *= np.sqrt(2 * target / variance)
    np.put_along_axis(offset, single, rng.uniform(-0.9, 0.9, single.shape), axis=-1)
    return np.clip(offset, -0.9, 0.9)


def _make_ties(base: Array, noise: Array, rng: np.random.Generator) -> None:
    """Some prompts' two leading ids are equal but for one bf16 step either way, drawn for each send."""
    tied = rng.random(len(base)) < TIES
    base[tied, 1] = base[tied, 0]
    noise[tied, ..., :2] = 0.0
    noise[tied, ..., 1] = BF16_STEP * rng.choice([-1, 0, 0, 1], noise[tied, ..., 1].shape)


def _normalised(logits: Array) -> Array:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    normalised: Array = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return normalised


def _answer(ids: list[int], values: list[float]) -> Answer:
    return Answer(
        status=200,
        latency=0.1,
        text="right" if ids[0] == 0 else "wrong",
        output_ids=[ids[0]],
        logprobs=[values[0]],
        top=[list(zip(ids, values, strict=True))],
        values=TOP_K + 1,
    )


def _nan() -> Answer:
    answer = _answer(list(range(TOP_K)), [np.nan] * TOP_K)
    answer.faces = {"null": TOP_K + 1}
    return answer


def _salad(cold_ids: list[int], rng: np.random.Generator) -> Answer:
    """Unknown ids, none of them likely and the cold ones less so: what a lost state answers with."""
    values = np.sort(rng.uniform(-7.0, -4.0, TOP_K))[::-1]
    answer = _answer((IDS + rng.permutation(10_000)[:TOP_K]).tolist(), values.tolist())
    answer.asked = [list(zip(cold_ids, rng.uniform(-14.0, -8.0, TOP_K).tolist(), strict=True))]
    return answer


def _record(order: int, role: str, cell: Cell, prompt: int, answer: Answer) -> Observation:
    return Observation(
        order=order,
        arm="none",
        probe="resend",
        role=role,
        namespace="simulated",
        length=cell.length,
        sent_at=0.0,
        answer=answer,
        cell=cell.name,
        kind=cell.kind,
        tail=cell.tail,
        prompt=f"simulated/{prompt}",
        group=f"simulated/{prompt}@{cell.length}",
        expected_cached=cell.position if role == "hit" else 0,
        expected_text="right",
    )
