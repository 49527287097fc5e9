"""Pack trained weights into a profile and measure it; run as `python -m ...training.evaluate --help`.

Everything in the card is measured with the NumPy engine on the int8 weights as shipped, fault off: each item
of the bank at exact prompt lengths, the frame, filler and pads chosen as the probes choose them.
"""

import argparse
import hashlib
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from tokenizers import Tokenizer

from fidelity.refserver.model import Model, Segment
from fidelity.refserver.moe import Experts
from fidelity.refserver.training.corpus import (
    OPEN,
    PROMPTS,
    Family,
    Frame,
    Turn,
    fill,
    filler_text,
    load_bank,
    numbers_in,
)
from fidelity.refserver.training.texts import LONG_ANSWERS
from fidelity.refserver.weights import load, pack

TOKENIZER: Final = Path(__file__).parents[1] / "profiles" / "tokenizer.json"
LENGTHS: Final = (65, 129, 193, 194, 225, 321, 449, 705, 706, 961)
SURE: Final = 0.9
TOGETHER: Final = 4  # prompts a forward


@dataclass(frozen=True)
class Case:
    name: str
    prompt: list[int]
    answer: list[int]


@dataclass(frozen=True)
class Outcome:
    """`first`: the first token is the answer's; `exact`: all are, each after the right ones."""

    name: str
    first: bool
    exact: bool
    probability: float
    gap: float


def templated(turns: Sequence[Turn]) -> str:
    """The prompt text, thinking off."""
    asked = "".join(f"<|im_start|>{turn.role}\n{turn.content}<|im_end|>\n" for turn in turns)
    return f"{asked}<|im_start|>assistant\n{OPEN}"


def fit(tokenizer: Tokenizer, family: Family, item: dict[str, str], length: int) -> list[int]:
    """Ids of the item's prompt of exactly `length` tokens. Raises ValueError when no frame fits."""

    def ids(frame: Frame, filler: str) -> list[int]:
        turns = [Turn(turn.role, fill(turn.content, item, filler)) for turn in frame.turns]
        return list(tokenizer.encode(templated(turns), add_special_tokens=False).ids)

    for frame in family.frames:
        room = length - len(ids(frame, "1"))
        if room >= 0:
            numbers = numbers_in(room)
            pads = length - len(ids(frame, filler_text(numbers, 0, "")))
            fitted = ids(frame, filler_text(numbers, pads, " ok"))
            if len(fitted) == length:
                return fitted
    raise ValueError(f"{family.name}/{item['id']} does not fit {length} tokens")


def cases(tokenizer: Tokenizer, bank: Sequence[Family], length: int) -> list[Case]:
    """Every item of the bank at `length`."""
    return [
        Case(
            f"{family.name}/{item['id']}",
            fit(tokenizer, family, item, length),
            list(tokenizer.encode(f"{item['answer']}<|im_end|>", add_special_tokens=False).ids),
        )
        for family in bank
        for item in family.items
    ]


def run(model: Model, todo: Sequence[Case]) -> list[Outcome]:
    """Prompt and answer in one forward; the logits after the prompt say what would be generated."""
    outcomes = []
    for at in range(0, len(todo), TOGETHER):
        group = todo[at : at + TOGETHER]
        segments = [
            Segment(np.array(c.prompt + c.answer[:-1]), model.empty(), logits_from=len(c.prompt) - 1)
            for c in group
        ]
        for case, result in zip(group, model.forward(segments), strict=True):
            logits = result.logits.astype(np.float64)
            right = logits.argmax(-1) == np.array(case.answer)
            shifted = np.exp(logits[0] - logits[0].max())
            below, top = np.sort(logits[0])[-2:]
            probability = float(shifted[case.answer[0]] / shifted.sum())
            outcomes.append(
                Outcome(case.name, bool(right[0]), bool(right.all()), probability, float(top - below))
            )
    return outcomes


def measure(
    model: Model, tokenizer: Tokenizer, bank: Sequence[Family], lengths: Sequence[int]
) -> dict[str, Any]:
    """The accuracy part of a profile card."""
    table: dict[str, dict[str, Any]] = {family.name: {} for family in bank}
    wrong: dict[str, list[int]] = {}
    gaps: list[float] = []
    for length in lengths:
        outcomes = run(model, cases(tokenizer, bank, length))
        gaps += [o.gap for o in outcomes if o.first]
        of = Counter(o.name.split("/")[0] for o in outcomes)
        first = Counter(o.name.split("/")[0] for o in outcomes if o.first)
        sure = Counter(o.name.split("/")[0] for o in outcomes if o.first and o.probability >= SURE)
        exact = Counter(o.name.split("/")[0] for o in outcomes if o.exact)
        for name, total in of.items():
            table[name][str(length)] = {
                "of": total,
                "first_token_right": first[name],
                "right_and_sure": sure[name],
                "whole_answer_right": exact[name],
            }
        for o in outcomes:
            if not (o.first and o.probability >= SURE):
                wrong.setdefault(o.name, []).append(length)
        sys.stdout.write(
            f"{length}: {sum(first.values())} right, {sum(sure.values())} sure of {len(outcomes)}\n"
        )
        sys.stdout.flush()
    texts = [
        Case(
            question,
            list(tokenizer.encode(templated([Turn("user", question)]), add_special_tokens=False).ids),
            list(tokenizer.encode(f"{answer}<|im_end|>", add_special_tokens=False).ids),
        )
        for question, answer in LONG_ANSWERS
    ]
    known = run(model, texts)
    quantiles = np.quantile(gaps, [0.001, 0.01, 0.05, 0.5]).round(2).tolist()
    return {
        "items": sum(len(family.items) for family in bank),
        "items_right_and_sure_at_every_length": sum(len(f.items) for f in bank) - len(wrong),
        "accuracy": table,
        "wrong_or_unsure": wrong,
        "first_token_gap_nats": dict(zip(["p0.1", "p1", "p5", "p50"], quantiles, strict=True)),
        "long_answers_verbatim": f"{sum(o.exact for o in known)} of {len(known)}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--weights", type=Path, required=True, help="the .npz that train wrote, its .json beside it"
    )
    parser.add_argument("--out", type=Path, required=True, help="profile folder to write")
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS))
    args = parser.parse_args()
    facts = json.loads(args.weights.with_suffix(".json").read_text())
    with np.load(args.weights) as archive:
        tensors = {name: archive[name] for name in archive.files}
    args.out.mkdir(parents=True, exist_ok=True)
    packed = args.out / "weights.npz"
    pack(packed, facts.pop("config"), tensors)
    loaded = load(args.out)
    tokenizer = Tokenizer.from_file(str(TOKENIZER))
    measured = measure(Model(loaded, Experts()), tokenizer, load_bank(PROMPTS), args.lengths)
    name = facts.pop("profile")
    on_gpu = "" if facts["device"].startswith("cpu") else "--device cuda "
    card = {
        "name": name,
        "kind": "trained",
        "about": "Learnt by heart from the prompt bank; knows nothing else.",
        "licence": "Apache-2.0",
        "sha256": hashlib.sha256(packed.read_bytes()).hexdigest(),
        "tokenizer_sha256": hashlib.sha256(TOKENIZER.read_bytes()).hexdigest(),
        "bytes": packed.stat().st_size,
        "parameters": sum(t.size for key, t in tensors.items() if key != "lm_head.weight"),
        "command": f"python -m fidelity.refserver.training.train --profile {name} --steps {facts['steps']} "
        f"--batch {facts['batch']} --seed {facts['seed']} {on_gpu}--out {name}.npz",
        "training": facts,
        "measured_with": "the NumPy engine on the int8 weights as shipped, fault off",
        **measured,
    }
    (args.out / "card.json").write_text(
        json.dumps(card, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main()
