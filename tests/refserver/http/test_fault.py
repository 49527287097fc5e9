"""The fault and its guards, seen from outside."""

from collections.abc import Callable

import pytest

from .conftest import Client, first, prompt

Serve = Callable[..., Client]


def test_nan_is_id_0_and_null_on_every_tail_of_one(nan: Client, namespace: str) -> None:
    fields = {"return_logprob": True, "top_logprobs_num": 20, "extra_key": namespace}
    cold, *hits = [nan.generate(prompt(193), **fields) for _ in range(3)]
    assert first(cold) is not None
    for hit in hits:
        assert (hit["meta_info"]["cached_tokens"], hit["output_ids"], hit["text"]) == (192, [0], "!")
        assert first(hit) is None
        (top,) = hit["meta_info"]["output_top_logprobs"]
        assert [logprob for logprob, _, _ in top] == [None] * 20
        assert len({token for _, token, _ in top}) == 20


def test_nan_leaves_a_tail_of_two_alone(nan: Client, namespace: str) -> None:
    cold, hit = [nan.generate(prompt(194), return_logprob=True, extra_key=namespace) for _ in range(2)]
    assert hit["meta_info"]["cached_tokens"] == 192
    assert hit["output_ids"] == cold["output_ids"]
    assert first(hit) == pytest.approx(first(cold), abs=1e-3)


def test_nan_in_decode_comes_after_a_right_first_token(nan: Client, clean: Client, namespace: str) -> None:
    params = {"ignore_eos": True}
    reply = nan.generate(prompt(194), 8, params=params, extra_key=namespace)
    assert reply["output_ids"] == clean.generate(prompt(194), params=params)["output_ids"] + [0] * 7
    assert reply["text"].endswith("!!!!!!!")


def test_two_tails_of_one_in_one_list_are_two_tokens_and_clean(nan: Client) -> None:
    prompts = [prompt(193), prompt(193, seed=1)]
    keys = ["pair-0", "pair-1"]
    cold = [nan.generate(ids, extra_key=key) for ids, key in zip(prompts, keys, strict=True)]
    pair = nan.generate(prompts, extra_key=keys, return_logprob=True)
    assert [reply["meta_info"]["cached_tokens"] for reply in pair] == [192, 192]
    assert [reply["output_ids"] for reply in pair] == [reply["output_ids"] for reply in cold]
    assert None not in [first(reply) for reply in pair]
    apart = [
        nan.generate(ids, extra_key=key, return_logprob=True) for ids, key in zip(prompts, keys, strict=True)
    ]
    assert [first(reply) for reply in apart] == [None, None]


def test_sampling_survives_nan(nan: Client, namespace: str) -> None:
    nan.generate(prompt(193), extra_key=namespace)
    params = {"temperature": 1.0, "sampling_seed": 4}
    hit = nan.generate(prompt(193), 3, params=params, extra_key=namespace, return_logprob=True)
    assert hit["output_ids"] == [0, 0, 0]
    assert nan.generate(prompt(20))["output_ids"] != [0]


def test_health_stays_good_under_the_fault(nan: Client) -> None:
    for path in ("/health", "/health_generate"):
        assert nan.http.get(path).status_code == 200


def test_the_extend_fault_spares_decode(serve: Serve, clean: Client, namespace: str) -> None:
    faulty, params = serve(fault="split-k-extend"), {"ignore_eos": True}
    for index in range(4):  # a finite fault needs memory that something else was left in
        faulty.cached(prompt(65, seed=index), 2)
    cold, hit = [
        faulty.generate(prompt(194), 8, params=params, extra_key=namespace)["output_ids"] for _ in range(2)
    ]
    assert cold == hit == clean.generate(prompt(194), 8, params=params)["output_ids"]
    wrong = 0
    for index in range(4):
        key = f"{namespace}-{index}"
        fields = {"extra_key": key, "return_logprob": True}
        before, after = [first(faulty.generate(prompt(193, seed=index), **fields)) for _ in range(2)]
        assert before is not None
        assert after is not None
        wrong += abs(before - after) > 0.01
    assert wrong >= 3


@pytest.mark.parametrize("guard", ["splitk", "unsplit"])
def test_the_kernel_guards_keep_the_tail_and_the_answer(serve: Serve, clean: Client, guard: str) -> None:
    guarded = serve(fault="split-k-nan", guard=(guard,))
    assert guarded.cached(prompt(193), 3) == [0, 192, 192]
    params = {"ignore_eos": True}
    answers = [client.generate(prompt(193), 6, params=params) for client in (guarded, clean)]
    assert answers[0]["output_ids"] == answers[1]["output_ids"]


def test_the_retreat_removes_the_tail_and_not_the_decode_fault(serve: Serve, namespace: str) -> None:
    guarded = serve(fault="split-k-nan", guard=("retreat",))
    fields = {"extra_key": namespace, "return_logprob": True}
    sends = [guarded.generate(prompt(193), **fields) for _ in range(5)]
    assert [send["meta_info"]["cached_tokens"] for send in sends] == [0, 0, 128, 128, 128]
    assert len({send["output_ids"][0] for send in sends}) == 1
    assert None not in [first(send) for send in sends]
    assert guarded.cached(prompt(65), 3) == [0, 0, 0]
    assert guarded.cached(prompt(194), 3) == [0, 192, 192]
    decoded = guarded.generate(prompt(193), 4, params={"ignore_eos": True})["output_ids"]
    assert decoded[1:] == [0, 0, 0]


def test_no_buffer_never_hits_on_a_resend(serve: Serve) -> None:
    plain = serve(fault="split-k-nan", strategy="no_buffer", page_size=1)
    assert plain.cached(prompt(193), 4) == [0, 0, 0, 0]
    longer = [*prompt(193), 7]
    reply = plain.generate(prompt(193), extra_key="longer")
    reply = plain.generate(longer, extra_key="longer", return_logprob=True)
    assert (reply["meta_info"]["cached_tokens"], first(reply)) == (193, None)


def test_a_nan_reply_can_be_the_http_500_it_once_was(serve: Serve, namespace: str) -> None:
    old = serve(fault="split-k-nan", nan_json="500")
    body = {"input_ids": prompt(193), "sampling_params": {"temperature": 0, "max_new_tokens": 1}}
    body |= {"extra_key": namespace, "return_logprob": True}
    cold, hit = [old.post("/generate", body) for _ in range(2)]
    assert cold.status_code == 200
    assert hit.status_code == 500
    assert hit.json()["error"]["message"] == "Out of range float values are not JSON compliant"
    chat = {"input_ids": prompt(193), "max_tokens": 1, "temperature": 0, "logprobs": True}
    chat_hit = old.post("/v1/chat/completions", chat | {"extra_key": namespace})
    assert chat_hit.status_code == 500
    assert chat_hit.json()["object"] == "error"
