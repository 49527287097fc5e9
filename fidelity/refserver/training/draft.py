"""Train a profile's draft head on its own answers: `python -m ...training.draft --profile quiz-state`.

The target writes answers to every item of the prompt bank and to the memorised questions, past their end, and
the head learns the target's next-token distribution one, two and three tokens after the one it is given
(self-distillation: cross-entropy against the target's softmax). Answers are collected, and acceptance is
measured, with the NumPy engine on the int8 weights as shipped; only the head is trained, in torch. The result
goes into the profile's folder: `draft.npz`, and the entry `draft` of `card.json`. Set OPENBLAS_NUM_THREADS=1
and OMP_NUM_THREADS=1: at these sizes more threads only wait for each other.
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional

from fidelity.refserver.draft import FILE, DraftHead, load_draft
from fidelity.refserver.layers import Array
from fidelity.refserver.model import Model, Segment
from fidelity.refserver.moe import Experts
from fidelity.refserver.sampling import Sampling, choose
from fidelity.refserver.training.corpus import PROMPTS, Turn, load_bank
from fidelity.refserver.training.evaluate import TOKENIZER, cases, templated
from fidelity.refserver.training.model_torch import Norm, Shape, SparseMoe
from fidelity.refserver.training.texts import LONG_ANSWERS
from fidelity.refserver.weights import HEAD, folder_of, load, pack

LENGTHS: Final = (65, 129, 193, 225, 321)  # prompt tokens of the answers that are learnt
HELD_OUT: Final = (161, 449)  # of those that acceptance is measured on
TOKENS: Final = 64  # an answer
LONG_TOKENS: Final = 128  # an answer to a memorised question
TEMPERATURES: Final = (0.0, 0.0, 0.0, 1.0)  # in turn: off the greedy path the head meets other states
LONG_REPEATS: Final = 8  # of the memorised answers, which are few
TOGETHER: Final = 32  # answers decoded in one batch
DEPTH: Final = 3  # tokens guessed in a row
DEPTH_WEIGHTS: Final = (1.0, 0.8, 0.6)
RATE: Final = 3e-3
WARM_UP: Final = 100  # steps


@dataclass(frozen=True)
class Answer:
    """What one prompt led to: tokens [n], and for each the last hidden state that chose it [n, hidden]."""

    tokens: NDArray[np.int64]
    hidden: Array


class TorchHead(nn.Module):
    """The head of `refserver/draft.py` for training; its own parameters only."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        hidden, eps = shape.hidden_size, shape.rms_norm_eps
        self.pre_fc_norm_embedding, self.pre_fc_norm_hidden = Norm(hidden, eps), Norm(hidden, eps)
        self.fc = nn.Linear(2 * hidden, hidden, bias=False)
        self.post_attention_layernorm = Norm(hidden, eps)
        self.mlp = SparseMoe(shape)
        self.norm = Norm(hidden, eps)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.5 * parameter.shape[1] ** -0.5)

    def forward(self, hidden: Tensor, embedded: Tensor) -> Tensor:
        """The next hidden state [n, hidden]; the target's head makes the logits from it."""
        x = self.fc(torch.cat([self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(hidden)], -1))
        return self.norm(x + self.mlp(self.post_attention_layernorm(x)))

    def tensors(self) -> dict[str, Array]:
        """Under the names of a Qwen3-Next checkpoint."""
        block = ("mlp.", "post_attention_layernorm.")
        return {
            f"mtp.layers.0.{name}" if name.startswith(block) else f"mtp.{name}": tensor.numpy()
            for name, tensor in self.state_dict().items()
        }


def collect(
    model: Model, prompts: Sequence[Sequence[int]], tokens: int, temperature: float, seed: int
) -> list[Answer]:
    """The target's answers of `tokens` tokens each, ends of answers included."""
    rng, sampling, answers = np.random.default_rng(seed), Sampling(temperature=temperature), []
    for at in range(0, len(prompts), TOGETHER):
        segments = [Segment(np.array(prompt), model.empty()) for prompt in prompts[at : at + TOGETHER]]
        written: list[tuple[list[int], list[Array]]] = [([], []) for _ in segments]
        for _ in range(tokens):
            results = model.forward(segments)
            for result, (ids, hidden) in zip(results, written, strict=True):
                ids.append(choose(result.logits[-1], sampling, rng)[0])
                hidden.append(result.hidden[-1])
            segments = [
                Segment(np.array(ids[-1:]), result.state, decode=True)
                for result, (ids, _) in zip(results, written, strict=True)
            ]
        answers += [Answer(np.array(ids), np.stack(hidden)) for ids, hidden in written]
    return answers


def acceptance(head: DraftHead, answers: Sequence[Answer], steps: int = DEPTH) -> float:
    """Tokens per verification (1 to `steps` + 1) if these greedy answers were decoded speculatively."""
    produced = verified = 0
    for answer in answers:
        drafts = head.propose(answer.hidden, answer.tokens, steps)
        at = 0
        while at + steps + 1 < len(answer.tokens):
            wrong = np.flatnonzero(drafts[at] != answer.tokens[at + 1 : at + 1 + steps])
            kept = int(wrong[0]) + 1 if len(wrong) else steps + 1
            produced, verified, at = produced + kept, verified + 1, at + kept
    return produced / verified


def train(
    answers: Sequence[Answer], embed: Array, head: Array, shape: Shape, steps: int, batch: int, seed: int
) -> TorchHead:
    """Fit a head to answers; `embed` and `head` [vocab, hidden] are the target's and stay as they are."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    tokens = torch.from_numpy(np.concatenate([answer.tokens for answer in answers]))
    hidden = torch.from_numpy(np.concatenate([answer.hidden for answer in answers]))
    ends = np.cumsum([len(answer.tokens) for answer in answers])
    starts = np.setdiff1d(np.arange(ends[-1]), np.concatenate([ends - 1 - k for k in range(DEPTH)]))
    table, to_logits = torch.from_numpy(embed), torch.from_numpy(head).T
    model = TorchHead(shape)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.01)
    begun, running = time.monotonic(), 0.0
    for step in range(steps):
        at = torch.from_numpy(rng.choice(starts, batch))
        state, loss = hidden[at], torch.zeros(())
        for depth in range(DEPTH):
            state = model(state, table[tokens[at + depth]])
            wanted = (hidden[at + depth + 1] @ to_logits).softmax(-1)
            loss = loss + DEPTH_WEIGHTS[depth] * functional.cross_entropy(state @ to_logits, wanted)
        rate = min((step + 1) / WARM_UP, 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * step / steps)))
        for group in optimizer.param_groups:
            group["lr"] = RATE * rate
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        running += float(loss.detach())
        if (step + 1) % 100 == 0:
            line = {"step": step + 1, "loss": round(running / 100, 4)}
            sys.stdout.write(json.dumps(line | {"wall_s": round(time.monotonic() - begun, 1)}) + "\n")
            sys.stdout.flush()
            running = 0.0
    return model


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--profile", required=True, help="a shipped profile's name, or a profile folder")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--batch", type=int, default=768, help="positions a step")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    begun = time.monotonic()
    weights, folder = load(args.profile), folder_of(args.profile)
    target = Model(weights, Experts())
    tokenizer, bank = Tokenizer.from_file(str(TOKENIZER)), load_bank(PROMPTS)
    memorised = [
        list(tokenizer.encode(templated([Turn("user", question)]), add_special_tokens=False).ids)
        for question, _ in LONG_ANSWERS
    ]
    long = collect(target, memorised, LONG_TOKENS, 0.0, args.seed)
    answers = long * LONG_REPEATS
    for index, length in enumerate(LENGTHS):
        prompts = [case.prompt for case in cases(tokenizer, bank, length)]
        for turn, temperature in enumerate(TEMPERATURES):
            answers += collect(
                target, prompts[turn :: len(TEMPERATURES)], TOKENS, temperature, args.seed + index
            )
    collected = time.monotonic()
    shape = Shape(**{name: getattr(weights.config, name) for name in Shape.__dataclass_fields__})
    trained = train(answers, target.embed, weights.tensors[HEAD], shape, args.steps, args.batch, args.seed)
    header = {"target": weights.card["name"], "target_sha256": weights.sha256}
    pack(folder / FILE, header, trained.tensors())
    head = DraftHead(load_draft(folder, weights), target)
    measured = {"memorised": round(acceptance(head, long), 3)}
    for length in HELD_OUT:
        prompts = [case.prompt for case in cases(tokenizer, bank, length)]
        measured[str(length)] = round(acceptance(head, collect(target, prompts, TOKENS, 0.0, args.seed)), 3)
    entry: dict[str, Any] = {
        "about": "Draft head (multi-token prediction) distilled from the target's own answers.",
        "target_sha256": weights.sha256,
        "bytes": (folder / FILE).stat().st_size,
        "command": f"python -m fidelity.refserver.training.draft --profile {weights.card['name']} "
        f"--steps {args.steps} --batch {args.batch} --seed {args.seed}",
        "torch": torch.__version__,
        "device": "cpu, one thread",
        "data": f"{sum(len(answer.tokens) for answer in answers)} tokens of {len(answers)} answers",
        "collect_seconds": round(collected - begun, 1),
        "wall_seconds": round(time.monotonic() - begun, 1),
        "accept_length_3_steps": measured,
    }
    card = json.loads((folder / "card.json").read_text(encoding="utf-8")) | {"draft": entry}
    text = json.dumps(card, indent=1, ensure_ascii=False) + "\n"
    (folder / "card.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
