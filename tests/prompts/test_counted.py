"""Lengths that only a server knows: right, learnt from few sends, and never with made-up ids."""

import re

import pytest

from fidelity.errors import PromptError
from fidelity.prompts.counted import FIXED, Counted, CountingTokenizer
from fidelity.prompts.embedded import EmbeddedTokenizer
from fidelity.prompts.fitting import fit
from fidelity.prompts.loading import load_families
from fidelity.prompts.tokenizers import Messages

FAMILIES = {family.family: family for family in load_families()}


class Server:
    """Counts by `pieces`, and its requests."""

    def __init__(self, pieces: str = r"\d| ?[^\W\d]+|\s|[^\w\s]") -> None:
        self.pieces, self.asked = pieces, 0

    def length(self, messages: Messages) -> int:
        return 9 + sum(4 + len(re.findall(self.pieces, turn["content"])) for turn in messages)

    def __call__(self, messages: Messages) -> int:
        self.asked += 1
        return self.length(messages)


PIECES = {
    "digit by digit": r"\d| ?[^\W\d]+|\s|[^\w\s]",
    "words and spaces apart": r"\d|[^\W\d]+|\s|[^\w\s]",
    "with the space": r" ?\d{1,3}| ?[^\W\d]+|\s|[^\w\s]",
    "larger numbers in two": r" ?(?:[1-3]\d|\d)| ?[^\W\d]+|\s|[^\w\s]",
    "no constant number": r" ?(?:1\d|2|3\d|\d)| ?[^\W\d]+|\s|[^\w\s]",
}


@pytest.mark.parametrize("pieces", PIECES.values(), ids=PIECES)
@pytest.mark.parametrize("length", [193, 194, 257, 512])
def test_fitted_prompts_have_the_length_that_the_server_counts(pieces: str, length: int) -> None:
    server = Server(pieces)
    tokenizer = CountingTokenizer(server, "a server")
    for name in ("capital", "arithmetic", "json", "followup"):
        family = FAMILIES[name]
        for item in family.items[:3]:
            fitted = fit(family, item, length, tokenizer)
            assert (len(fitted.ids), fitted.length, server.length(fitted.messages)) == (length,) * 3


def test_a_prompt_takes_one_send_where_numbers_take_a_constant_number_of_tokens() -> None:
    server = Server()
    tokenizer = CountingTokenizer(server, "a server")
    family = FAMILIES["capital"]
    fit(family, family.items[0], 193, tokenizer)
    assert server.asked == FIXED + 1
    before = server.asked
    for item in family.items[1:11]:
        fit(family, item, 193, tokenizer)
        fit(family, item, 194, tokenizer)
    assert server.asked - before == 10


def test_it_fits_as_the_embedded_tokenizer_does() -> None:
    known = EmbeddedTokenizer(False)
    tokenizer = CountingTokenizer(lambda messages: len(known.encode(messages)), "a server")
    for family in list(FAMILIES.values())[:6]:
        for length in (193, 225):
            item = family.items[0]
            fitted = fit(family, item, length, tokenizer)
            assert fitted.messages == fit(family, item, length, known).messages


def test_no_id_is_made_up_and_nothing_is_cut() -> None:
    prompt = Counted([{"role": "user", "content": "hi"}], 12)
    assert (len(prompt), list(prompt), tuple(prompt)) == (12, [], ())
    assert prompt[:12] is prompt
    assert prompt[:99] is prompt
    with pytest.raises(ValueError, match="cannot be cut"):
        prompt[:11]
    with pytest.raises(ValueError, match="cannot be cut"):
        prompt[0]


def test_what_it_cannot_learn_is_refused() -> None:
    tokenizer = CountingTokenizer(Server(), "a server")
    with pytest.raises(PromptError, match="tools"):
        tokenizer.encode([{"role": "user", "content": "hi"}], [{"type": "function"}])
    with pytest.raises(PromptError, match="no tokenizer"):
        tokenizer.decode([1])
