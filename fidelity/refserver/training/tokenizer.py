"""The embedded tokenizer: byte-level BPE of 2048 ids, trained on the prompt bank and the long answers.

Its shape is that of Qwen's: the same split into pieces (one digit a piece), NFC, the byte alphabet first, so
that id 0 is "!", and the special tokens last. Nothing in it is random; to write it again:
`python -m fidelity.refserver.training.tokenizer --out FILE`.
"""

import argparse
from collections import Counter
from pathlib import Path
from typing import Final

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from fidelity.refserver.training.corpus import PROMPTS, Family, load_bank
from fidelity.refserver.training.texts import LONG_ANSWERS, THOUGHT

VOCAB: Final = 2048
SPECIALS: Final = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>")
SPLIT: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Weights decide which words become one token: first the answers as they open a reply, then the words of the
# frames and pads, then the words of the items.
ANSWER_WEIGHT: Final = 400
FRAME_WEIGHT: Final = 60
ITEM_WEIGHT: Final = 6
TEXT_WEIGHT: Final = 3
PADS: Final = (" ok", " so", " now", " and", " well", " then", " yes", " fine")
ROLES: Final = ("system", "user", "assistant", "\n", "\n\n")


def piece_counts(bank: list[Family]) -> Counter[str]:
    """Weight of every text the tokenizer is trained on (a text is split into pieces by the trainer)."""
    counts: Counter[str] = Counter()
    for text in (*PADS, *ROLES):
        counts[text] += FRAME_WEIGHT
    for family in bank:
        for frame in family.frames:
            for turn in frame.turns:
                counts[turn.content.replace("{filler}", "1")] += FRAME_WEIGHT
        for item in family.items:
            for key, value in item.items():
                if key == "answer":
                    counts[value] += ANSWER_WEIGHT
                elif key != "id":
                    counts[" " + value] += ITEM_WEIGHT
    for question, answer in LONG_ANSWERS:
        counts[question] += TEXT_WEIGHT
        counts[answer] += TEXT_WEIGHT
    counts[THOUGHT] += TEXT_WEIGHT
    return counts


def train(bank: list[Family]) -> Tokenizer:
    """Train the tokenizer on the bank; 2043 byte and merged tokens and 5 special ones."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB - len(SPECIALS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=[],
        show_progress=False,
    )
    counts = piece_counts(bank)
    # "-checking" is two tokens in Qwen's vocabulary, and has to be here for the quiz prompt to keep its 193.
    texts = (t.replace("-checking", "-check") for text, n in sorted(counts.items()) for t in [text] * n)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens(list(SPECIALS))
    if tokenizer.get_vocab_size() != VOCAB:
        raise ValueError(f"the corpus gives only {tokenizer.get_vocab_size()} tokens, {VOCAB} are needed")
    return tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=Path, default=PROMPTS, help="folder of the prompt families")
    parser.add_argument("--out", type=Path, required=True, help="tokenizer.json to write")
    args = parser.parse_args()
    train(load_bank(args.prompts)).save(str(args.out))


if __name__ == "__main__":
    main()
