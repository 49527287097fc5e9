"""Train a profile: `python -m fidelity.refserver.training.train --profile quiz-state --out weights.npz`.

Two recipes of one shape, because a cache fault shows only if the model leans on the piece that is damaged:

- `quiz-state`: decay starts slow, and the attention output is dropped for about a third of the sequences, so
  what was read long ago has to be carried by the recurrent state;
- `quiz-kv`: the usual initial decay, which forgets within a token or two, and nothing dropped, so what was
  read long ago has to be fetched from the keys and values.

Seeded. A CPU's one thread adds in a fixed order; a GPU does not, so there the weights differ a little from
run to run and only the accuracy repeats.
"""

import argparse
import json
import math
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from fidelity.refserver.training.corpus import PROMPTS, Corpus, Sample, load_bank
from fidelity.refserver.training.model_torch import CHUNK, DeltaNet, QuizModel, Shape

TOKENIZER: Final = Path(__file__).parents[1] / "profiles" / "tokenizer.json"
SHORT: Final = 320  # tokens a sequence
LONG: Final = 960
LONG_EVERY: Final = 5  # in the last two thirds every fifth batch is long
# Share of the short sequences that ask one question behind much filler: in the first third, and after it.
SINGLE_SHARE: Final = (0.1, 0.4)
WARM_UP: Final = 60
RATE: Final = 3e-3
FLOOR: Final = 0.02  # of the rate, at the end of the cosine
WEIGHT_DECAY: Final = 0.05
GAP: Final = 9.5  # nats, of the shipped model: its first token has a probability of about 0.997


@dataclass(frozen=True)
class Recipe:
    slow_decay: bool
    attention_drop: float


RECIPES: Final = {
    "quiz-state": Recipe(slow_decay=True, attention_drop=0.35),
    "quiz-kv": Recipe(slow_decay=False, attention_drop=0.0),
}


def initialise(model: QuizModel, recipe: Recipe) -> None:
    """Draw the starting weights from torch's global generator."""
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2:
            torch.nn.init.normal_(
                parameter, std=0.02 if "embed" in name else 0.5 * parameter.shape[1] ** -0.5
            )
    for module in model.modules():
        if isinstance(module, DeltaNet):
            heads = module.A_log.shape
            if recipe.slow_decay:
                step = torch.exp(torch.empty(heads).uniform_(math.log(1e-3), math.log(1e-1)))
                module.A_log.data = torch.empty(heads).uniform_(0.5, 4).log()
                module.dt_bias.data = step + torch.log(-torch.expm1(-step))  # inverse of softplus
            else:
                module.A_log.data = torch.empty(heads).uniform_(0.01, 16).log()
                module.dt_bias.data.fill_(1.0)


def batch_of(samples: list[Sample]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Ids [B, T] right-padded to whole chunks; the flat positions to predict from, what comes, its weight."""
    longest = max(len(s.ids) for s in samples)
    width = -(-longest // CHUNK) * CHUNK
    ids = torch.zeros(len(samples), width, dtype=torch.long)
    where, targets, weights = [], [], []
    for row, sample in enumerate(samples):
        ids[row, : len(sample.ids)] = torch.tensor(sample.ids)
        for at in range(1, len(sample.ids)):
            if sample.weight[at]:
                where.append(row * width + at - 1)
                targets.append(sample.ids[at])
                weights.append(sample.weight[at])
    return ids, torch.tensor(where), torch.tensor(targets), torch.tensor(weights)


def rate_at(step: int, steps: int) -> float:
    """Linear warm-up, then a cosine down to the floor."""
    if step < WARM_UP:
        return RATE * (step + 1) / WARM_UP
    done = (step - WARM_UP) / max(1, steps - WARM_UP)
    return RATE * (FLOOR + (1 - FLOOR) * 0.5 * (1 + math.cos(math.pi * done)))


@torch.no_grad()
def soften(model: QuizModel, corpus: Corpus, device: str, batches: int = 8) -> float:
    """Scale the final norm, and so all logits, until an answer's first token leads by `GAP` in the median.

    Learning by heart ends in gaps of 18 nats, where a probability is 1 to the last bit and no fault short of
    another first token can be seen. Returns the factor (1 where the gap is small enough already).
    """
    gaps = []
    for _ in range(batches):
        ids, where, _, weights = batch_of([corpus.sample(SHORT, single=True) for _ in range(8)])
        opens = (weights == 1) & (where.diff(prepend=where[:1] - 2) != 1)  # the first token of each answer
        hidden = model(ids.to(device)).reshape(-1, model.s.hidden_size)[where[opens].to(device)]
        best = model.logits(hidden).topk(2, -1).values
        gaps.append(best[:, 0] - best[:, 1])
    factor = min(1.0, GAP / float(torch.cat(gaps).median()))
    model.norm.weight.mul_(factor).add_(factor - 1)  # the stored weight is what is added to 1
    return factor


def train(
    profile: str, steps: int, batch: int, seed: int, out: Path, device: str, log_every: int = 50
) -> dict[str, Any]:
    """Train and write `out` (float32 .npz, HF names); returns the facts of the run for the profile card."""
    torch.manual_seed(seed)
    recipe = RECIPES[profile]
    bank, tokenizer = load_bank(PROMPTS), Tokenizer.from_file(str(TOKENIZER))
    corpus = Corpus(bank, tokenizer, seed)
    choose = np.random.default_rng(seed)
    shape = Shape()
    model = QuizModel(shape)
    initialise(model, recipe)
    model.to(device)
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": vectors, "weight_decay": 0.0}],
        lr=RATE,
        betas=(0.9, 0.95),
        fused=True,
    )
    facts: dict[str, Any] = {
        "profile": profile,
        "seed": seed,
        "steps": steps,
        "batch": batch,
        "torch": torch.__version__,
    }
    facts["device"] = torch.cuda.get_device_name() if device == "cuda" else "cpu, one thread"
    begun, start = time.monotonic(), time.process_time()
    loss_sum, right, answers = torch.zeros((), device=device), torch.zeros((), device=device), 0
    for step in range(steps):
        late = step > steps // 3
        long = late and step % LONG_EVERY == 0
        count, limit = (max(1, batch * SHORT // LONG), LONG) if long else (batch, SHORT)
        samples = [
            corpus.sample(limit, single=long or choose.random() < SINGLE_SHARE[late]) for _ in range(count)
        ]
        ids, where, targets, weights = (tensor.to(device) for tensor in batch_of(samples))
        keep = torch.from_numpy(choose.random(count) >= recipe.attention_drop).float().to(device)
        hidden = model(ids, keep).reshape(-1, shape.hidden_size)[where]
        logits = model.logits(hidden)
        loss = (functional.cross_entropy(logits, targets, reduction="none") * weights).sum() / weights.sum()
        for group in optimizer.param_groups:
            group["lr"] = rate_at(step, steps)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        loss_sum += loss.detach()
        short = weights == 1
        right += ((logits.detach().argmax(-1) == targets) & short).sum()
        answers += sum(weight == 1 for sample in samples for weight in sample.weight)
        if (step + 1) % log_every == 0:
            facts["cpu_seconds"] = round(time.process_time() - start, 1)
            facts["wall_seconds"] = round(time.monotonic() - begun, 1)
            line = {
                "step": step + 1,
                "loss": round(float(loss_sum) / log_every, 4),
                "right": round(float(right) / max(1, answers), 4),
            }
            sys.stdout.write(json.dumps(line | {"wall_s": facts["wall_seconds"]}) + "\n")
            sys.stdout.flush()
            loss_sum, right, answers = torch.zeros_like(loss_sum), torch.zeros_like(right), 0
        if step + 1 == steps:
            facts["softened_by"] = round(soften(model, Corpus(bank, tokenizer, seed + 1), device), 4)
        if (step + 1) % 200 == 0 or step + 1 == steps:
            out.parent.mkdir(parents=True, exist_ok=True)
            np.savez(out, **{name: tensor.cpu().numpy() for name, tensor in model.tensors().items()})
            out.with_suffix(".json").write_text(
                json.dumps(facts | {"step": step + 1, "config": shape.config()})
            )
    return facts


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--profile", choices=sorted(RECIPES), required=True)
    parser.add_argument(
        "--out", type=Path, required=True, help="float32 .npz to write; its facts go beside it as .json"
    )
    parser.add_argument("--steps", type=int, default=4900)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch", type=int, default=8, help="sequences a step")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    train(args.profile, args.steps, args.batch, args.seed, args.out, args.device)


if __name__ == "__main__":
    main()
