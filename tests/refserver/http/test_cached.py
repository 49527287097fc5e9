"""The cache and the batch, seen from outside."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from .conftest import Client, first, prompt


def test_cached_tokens_over_http(clean: Client) -> None:
    assert clean.cached(prompt(193), 3) == [0, 192, 192]
    assert clean.cached(prompt(192), 3) == [0, 0, 128]
    assert clean.cached(prompt(65), 3) == [0, 64, 64]


def test_salt_and_key_part_the_cache_together(clean: Client, namespace: str) -> None:
    ids = prompt(65)

    def cached(**fields: str) -> int:
        count: int = clean.generate(ids, **fields)["meta_info"]["cached_tokens"]
        return count

    assert cached(extra_key=namespace, cache_salt="s") == 0
    assert cached(extra_key=namespace) == 0
    assert cached(cache_salt="s" + namespace) == 64  # one after the other, as sglang joins them
    assert cached(extra_key=namespace, cache_salt="s") == 64


def test_hits_answer_as_cold_sends_do(clean: Client) -> None:
    for length in (65, 66, 97, 128, 193):
        key = f"hits-{length}"
        sends = [
            clean.generate(prompt(length), extra_key=key, return_logprob=True, token_ids_logprob=[1, 2, 3])
            for _ in range(3)
        ]
        assert len({send["output_ids"][0] for send in sends}) == 1
        assert first(sends[2]) == pytest.approx(first(sends[0]), abs=1e-3)


def test_an_answer_alone_and_in_a_batch(clean: Client) -> None:
    prompts = [prompt(65 + index, seed=9) for index in range(4)]
    fields = {"params": {"ignore_eos": True}, "return_logprob": True}
    alone = [clean.generate(ids, 12, **fields) for ids in prompts]
    together = clean.generate(prompts, 12, **fields)
    for one, other in zip(alone, together, strict=True):
        assert one["output_ids"] == other["output_ids"]
        for mine, theirs in zip(
            one["meta_info"]["output_token_logprobs"],
            other["meta_info"]["output_token_logprobs"],
            strict=True,
        ):
            assert mine[0] == pytest.approx(theirs[0], abs=1e-3)


def test_many_at_once_answer_as_one_by_one(clean: Client) -> None:
    prompts = [prompt(30 + index, seed=3) for index in range(12)]
    alone = [clean.generate(ids, 8)["output_ids"] for ids in prompts]
    with ThreadPoolExecutor(12) as threads:
        together = list(threads.map(lambda ids: clean.generate(ids, 8)["output_ids"], prompts))
    assert together == alone
