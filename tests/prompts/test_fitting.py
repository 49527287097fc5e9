import random
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fidelity.errors import LengthError
from fidelity.prompts.families import Family, Message
from fidelity.prompts.fitting import PADS, Fitted, fit
from fidelity.prompts.growth import filler
from fidelity.prompts.local import LocalTokenizer

THREAD_SYSTEM = "You are a precise assistant. Answer the user's question with a single word."
THREAD_USER = (
    "I am double-checking a short geography quiz before I submit it. So far I have reviewed quiz item "
    "numbers "
    + " ".join(str(number) for number in range(1, 40))
    + ". The one fact I still want to confirm is this question: what is the capital of France? "
    "Reply with only the city name, nothing else."
)


class Fake:
    """A tokenizer made of a function from the whole templated text to its pieces."""

    vocab_size = None
    source = "fake"

    def __init__(self, cut: Callable[[str], Sequence[object]]) -> None:
        self.cut = cut
        self.calls = 0

    def encode(self, messages: list[Message]) -> list[int]:
        self.calls += 1
        text = "".join(f"<{m['role']}>{m['content']}</>" for m in messages) + "<assistant>"
        return list(range(len(self.cut(text))))

    def decode(self, ids: Sequence[int]) -> str:
        return ""


def characters(text: str) -> Sequence[object]:
    return text.encode()


def words(text: str) -> Sequence[object]:
    return re.findall(r"<\w*>|</>| ?[a-z]+| ?\d+|.", text)


def pads_merge_in_pairs(text: str) -> Sequence[object]:
    pairs = "|".join(re.escape(pad * 2) for pad in PADS)
    return re.findall(rf"{pairs}|<\w*>|</>| ?[a-z]+| ?\d|.", text)


def last_pad_merges_with_what_follows(text: str) -> Sequence[object]:
    ends = "|".join(re.escape(pad) + r"\.? [A-Za-z]\w*" for pad in PADS)
    return re.findall(rf"{ends}|<\w*>|</>| ?[a-z]+| ?\d|.", text)


def only_the_last_pad_counts(text: str) -> Sequence[object]:
    silent = "|".join(re.escape(pad) for pad in PADS[:-1])
    return re.findall(r"<\w*>|</>| ?[a-z]+| ?\d|.", re.sub(rf"({silent})(?=\W)", "", text))


def falls_at_every_seventh_number(text: str) -> Sequence[object]:
    """Length is not monotone in the filler count: some last numbers swallow what stands around them."""
    last = re.search(r"(\d+)\. ", text)
    pieces = re.findall(r"<\w*>|</>| ?[a-z]+| ?\d|.", text)
    return pieces[5:] if last and int(last[1]) % 7 == 0 else pieces


def four_numbers_in_one_token(text: str) -> Sequence[object]:
    return re.findall(r"( \d+){4}|<\w*>|</>| ?[a-z]+| ?\d+|.", text)


def uneven_numbers(text: str) -> Sequence[object]:
    """Numbers take one token or three, without a pattern in their digit count."""
    return [
        part
        for piece in re.findall(r"<\w*>|</>| ?[a-z]+| ?\d+|.", text)
        for part in (piece * 3 if piece.strip().isdigit() and int(piece) % 3 == 0 else [piece])
    ]


CUTS = [
    characters,
    words,
    pads_merge_in_pairs,
    last_pad_merges_with_what_follows,
    only_the_last_pad_counts,
    falls_at_every_seventh_number,
    four_numbers_in_one_token,
]


@pytest.mark.parametrize("cut", CUTS)
def test_every_length_from_the_least_is_reached(quiz: Family, cut: Callable[[str], Sequence[object]]) -> None:
    tokenizer = Fake(cut)
    item = quiz.items[0]
    with pytest.raises(LengthError) as refused:
        fit(quiz, item, 1, tokenizer)
    least = int(re.findall(r"takes (\d+)", refused.value.message)[0])
    for length in range(least, least + 260):
        check(fit(quiz, item, length, tokenizer), quiz, length, tokenizer)


def test_uneven_numbers_are_reached(quiz: Family) -> None:
    tokenizer = Fake(uneven_numbers)
    for length in range(120, 400):
        check(fit(quiz, quiz.items[0], length, tokenizer), quiz, length, tokenizer)


def check(fitted: Fitted, family: Family, length: int, tokenizer: Any) -> None:
    """The fitted prompt is what it says it is, by the whole templated prompt."""
    assert len(fitted.ids) == fitted.length == length
    assert tokenizer.encode(fitted.messages) == fitted.ids
    text = filler(fitted.filler_count, fitted.pad, fitted.pad_count)
    assert text in fitted.messages[-1]["content"]
    assert fitted.prompt_id == f"{family.family}/{fitted.item}"
    assert not any("{filler}" in message["content"] for message in fitted.messages)


def test_a_tokenizer_with_even_lengths_only(quiz: Family) -> None:
    tokenizer = Fake(lambda text: words(text + text))
    assert len(fit(quiz, quiz.items[0], 100, tokenizer).ids) == 100
    with pytest.raises(LengthError) as refused:
        fit(quiz, quiz.items[0], 101, tokenizer)
    message = refused.value.message
    assert "quiz/sky" in message
    assert "exactly 101" in message
    assert "nearest found: 100 and 102" in message
    assert refused.value.hint == "ask for 100 tokens, or use another prompt"


def test_below_the_least_length(quiz: Family) -> None:
    tokenizer = Fake(words)
    least = len(tokenizer.encode([{"role": "user", "content": "1. what colour is the sky?"}]))
    with pytest.raises(LengthError) as refused:
        fit(quiz, quiz.items[0], least - 1, tokenizer)
    assert f"cannot be {least - 1} templated tokens long" in refused.value.message
    assert f"its shortest frame takes {least} (fake)" in refused.value.message
    assert refused.value.hint is not None
    assert f"ask for {least} tokens or more" in refused.value.hint
    assert fit(quiz, quiz.items[0], least, tokenizer).filler_count == 1


def test_a_filler_that_never_grows_ends_in_an_error(quiz: Family) -> None:
    tokenizer = Fake(lambda text: text[:40])
    with pytest.raises(LengthError, match="exactly 64"):
        fit(quiz, quiz.items[0], 64, tokenizer)
    assert tokenizer.calls < 3000


def test_the_longest_frame_that_allows_the_length(quiz: Family) -> None:
    tokenizer = Fake(words)
    shortest = [
        min(length for length in range(10, 60) if frame_of(quiz, length, tokenizer) == n) for n in (0, 1)
    ]
    assert shortest[0] > shortest[1]
    assert all(frame_of(quiz, length, tokenizer) == 0 for length in range(shortest[0], 60))


def frame_of(family: Family, length: int, tokenizer: Fake) -> int | None:
    try:
        return fit(family, family.items[0], length, tokenizer).frame
    except LengthError:
        return None


def test_most_numbers_and_fewest_pads(quiz: Family) -> None:
    tokenizer = Fake(words)
    for length in range(60, 90):
        assert fit(quiz, quiz.items[0], length, tokenizer).pad_count == 0
    digits = Fake(lambda text: re.findall(r"<\w*>|</>| ?[a-z]+| |\d|.", text))
    assert {fit(quiz, quiz.items[0], length, digits).pad_count for length in range(80, 90)} == {0, 1, 2}


def test_most_numbers_although_the_forecast_is_one_too_low(quiz: Family) -> None:
    """The prompt with the filler "1", from which the forecast starts, takes a token more than it should."""
    tokenizer = Fake(lambda text: [*words(text), *(["extra"] if " 1." in text else [])])
    for length in range(60, 90):
        assert fit(quiz, quiz.items[0], length, tokenizer).pad_count == 0


@settings(max_examples=60, deadline=None)
@given(
    merges=st.sets(
        st.one_of(
            st.text("0123456789 .", min_size=2, max_size=4), st.text("okson d!.", min_size=2, max_size=5)
        ),
        max_size=25,
    ),
    length=st.integers(150, 420),
)
def test_exact_with_any_merges(merges: set[str], length: int) -> None:
    family = Family.model_validate(
        {
            "family": "quiz",
            "kind": "fact",
            "about": "any",
            "frames": [{"user": "Items {filler}. Now {question}"}, {"user": "{filler} {question}"}],
            "items": [{"id": "a", "question": "say good", "answer": "good"}],
        }
    )
    longest = sorted(merges, key=lambda merge: (-len(merge), merge))
    pattern = re.compile("|".join(map(re.escape, longest)) + "|." if longest else ".")
    tokenizer = Fake(pattern.findall)
    check(fit(family, family.items[0], length, tokenizer), family, length, tokenizer)


def test_the_result_does_not_depend_on_earlier_fits(
    quiz: Family, embedded: LocalTokenizer, counting: Callable[[Any], Any]
) -> None:
    used = counting(embedded)
    work = [(item, length) for item in quiz.items for length in range(66, 700, 41)]
    first = {(item.id, length): fit(quiz, item, length, used) for item, length in work}
    random.Random(1).shuffle(work)
    for item, length in work:
        fresh = counting(embedded)  # another object, of which nothing has been measured yet
        assert fit(quiz, item, length, fresh) == fit(quiz, item, length, used) == first[item.id, length]
        assert fresh.calls > 4


def test_first_threads_prompt_is_193_tokens(families: list[Family], embedded: LocalTokenizer) -> None:
    capital = next(family for family in families if family.family == "capital")
    france = next(item for item in capital.items if item.id == "france")
    fitted = fit(capital, france, 193, embedded)
    assert fitted.messages == [
        {"role": "system", "content": THREAD_SYSTEM},
        {"role": "user", "content": THREAD_USER},
    ]
    assert (fitted.filler_count, fitted.pad_count, fitted.frame, fitted.answer) == (39, 0, 0, "Paris")


def test_neighbouring_lengths_are_cheap(
    families: list[Family], embedded: LocalTokenizer, counting: Any
) -> None:
    tokenizer = counting(embedded)
    fit(families[0], families[0].items[0], 193, tokenizer)
    assert tokenizer.calls <= 12
    costs = []
    for family in families:
        for length in (193, 194, 195, 196, 225):
            before = tokenizer.calls
            fit(family, family.items[1], length, tokenizer)
            costs.append(tokenizer.calls - before)
    assert max(costs) <= 8
    assert sum(costs) / len(costs) <= 3


def test_all_families_at_lengths_65_to_1025(families: list[Family], embedded: LocalTokenizer) -> None:
    """Each family at every 31st length, each at other ones and with changing items; `slow` does them all."""
    for offset, family in enumerate(families):
        for turn, length in enumerate(range(65 + 2 * offset % 31, 1026, 31)):
            item = family.items[turn % len(family.items)]
            check(fit(family, item, length, embedded), family, length, embedded)


def test_every_prompt_at_65(families: list[Family], embedded: LocalTokenizer) -> None:
    for family in families:
        for item in family.items:
            check(fit(family, item, 65, embedded), family, 65, embedded)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("thinking", [False, True])
def test_all_families_at_every_length(families: list[Family], embedded_folder: Any, thinking: bool) -> None:
    tokenizer = LocalTokenizer(embedded_folder, thinking)
    for family in families:
        for length in range(65, 1026):
            item = family.items[length % len(family.items)]
            check(fit(family, item, length, tokenizer), family, length, tokenizer)
