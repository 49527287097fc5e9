"""The deterministic mode over HTTP: cold, hit, decode and re-score quote the same bits."""

from collections.abc import Callable
from typing import Any

from .conftest import Client, prompt

Serve = Callable[..., Client]


def quoted(reply: Any) -> list[Any]:
    meta = reply["meta_info"]
    return [meta["output_token_logprobs"], meta["output_top_logprobs"]]


def sends(client: Client, namespace: str) -> list[Any]:
    """A cold answer, the same as a hit, and the answer scored by a prefill of its own."""
    fields = {"return_logprob": True, "top_logprobs_num": 5, "extra_key": namespace}
    params = {"ignore_eos": True}
    cold, hit = [client.generate(prompt(193), 6, params=params, **fields) for _ in range(2)]
    assert [reply["meta_info"]["cached_tokens"] for reply in (cold, hit)] == [0, 192]
    whole = [*prompt(193), *cold["output_ids"]]
    fields |= {"extra_key": f"{namespace}-score", "logprob_start_len": 0}
    return [cold, hit, client.generate(whole, 0, **fields)]


def test_every_path_quotes_the_same_bits(serve: Serve, namespace: str) -> None:
    exact = serve(deterministic=True)
    cold, hit, scored = sends(exact, namespace)
    assert quoted(cold) == quoted(hit)
    scores = scored["meta_info"]["input_token_logprobs"][193:]
    assert scores == cold["meta_info"]["output_token_logprobs"]
    assert len(scores) == 6
    assert exact.http.get("/server_info").json()["enable_deterministic_inference"] is True


def test_without_it_the_paths_differ_in_the_last_bits(clean: Client, namespace: str) -> None:
    cold, hit, scored = sends(clean, namespace)
    scores = scored["meta_info"]["input_token_logprobs"][193:]
    assert cold["output_ids"] == hit["output_ids"]
    assert scores != cold["meta_info"]["output_token_logprobs"]
    assert clean.http.get("/server_info").json()["enable_deterministic_inference"] is False
