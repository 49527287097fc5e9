"""Faults as a client meets them: counts, logprobs and NaN in the replies of both APIs."""

from collections.abc import Callable
from typing import Any

import pytest

from fidelity.refserver.__main__ import parse_arguments

from .conftest import Client, first, prompt

Serve = Callable[..., Client]
ASKED = {"return_logprob": True, "top_logprobs_num": 2}


def hit(client: Client, namespace: str, **fields: Any) -> Any:
    """The second of two native sends."""
    cold, again = [client.generate(prompt(193), extra_key=namespace, **fields) for _ in range(2)]
    assert cold["output_ids"]
    return again


def chat(client: Client, namespace: str, **fields: Any) -> Any:
    body = {"input_ids": prompt(193), "max_tokens": 1, "temperature": 0, "logprobs": True}
    reply = client.post("/v1/chat/completions", body | {"extra_key": namespace} | fields)
    assert reply.status_code == 200, reply.text
    return reply


@pytest.mark.parametrize(
    "fields", [{"fault": "nan-clamped"}, {"fault": "split-k-nan", "nan_json": "clamped"}]
)
def test_a_clamped_nan_is_minus_9999_wherever_it_stands(
    serve: Serve, namespace: str, fields: dict[str, str]
) -> None:
    client = serve(**fields)
    reply = hit(client, namespace, **ASKED)
    assert first(reply) == -9999.0
    assert [logprob for logprob, _, _ in reply["meta_info"]["output_top_logprobs"][0]] == [-9999.0] * 2
    content = chat(client, namespace).json()["choices"][0]["logprobs"]["content"]
    assert content[0]["logprob"] == -9999.0
    assert '"logprob":-9999.0' in chat(client, namespace, stream=True).text


def test_nan_restored_is_null_or_an_error(serve: Serve, namespace: str) -> None:
    assert first(hit(serve(fault="nan-null"), namespace, **ASKED)) is None
    old = serve(fault="nan-500")
    old.generate(prompt(193), extra_key=namespace)
    sampling = {"temperature": 0, "max_new_tokens": 1}
    body = {"input_ids": prompt(193), "sampling_params": sampling, "extra_key": namespace, **ASKED}
    assert old.post("/generate", body).status_code == 500


@pytest.mark.parametrize(
    ("fault", "count", "details", "usage"),
    [
        ("wrong-count", 128, {"device": 128, "host": 0}, {"cached_tokens": 128}),
        ("null-counts", None, None, None),
        ("never-hits", 0, None, None),
    ],
)
def test_counts_in_replies(
    serve: Serve, namespace: str, fault: str, count: int | None, details: Any, usage: Any
) -> None:
    client = serve(fault=fault)
    meta = hit(client, namespace)["meta_info"]
    assert (meta["cached_tokens"], meta["cached_tokens_details"]) == (count, details)
    assert chat(client, namespace).json()["usage"]["prompt_tokens_details"] == usage


def test_no_logprobs_in_replies(serve: Serve, namespace: str) -> None:
    client = serve(fault="no-logprobs")
    reply = hit(client, namespace, **ASKED, logprob_start_len=0)
    assert not [key for key in reply["meta_info"] if "logprob" in key]
    assert reply["meta_info"]["cached_tokens"] == 192
    assert chat(client, namespace).json()["choices"][0]["logprobs"] is None


def test_a_lying_flush_answers_200(serve: Serve, namespace: str) -> None:
    client = serve(fault="lying-flush")
    hit(client, namespace)
    assert client.post("/flush_cache", {}).status_code == 200
    assert client.generate(prompt(193), extra_key=namespace)["meta_info"]["cached_tokens"] == 192


def test_the_spec_and_the_chunk_size_are_told(serve: Serve) -> None:
    spec = "swapped-row:rate=0.2,drift:after=100"
    info = serve(fault=spec, chunked_prefill_size=96).http.get("/server_info").json()
    assert (info["fault"], info["chunked_prefill_size"]) == (spec, 96)
    assert serve().http.get("/server_info").json()["chunked_prefill_size"] == 8192


def test_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--fault", "drift:rate=0.5", "--chunked-prefill-size", "128", "--nan-json", "clamped"]
    settings, _ = parse_arguments(words)
    assert (settings.fault, settings.chunked_prefill_size, settings.nan_json) == (words[1], 128, "clamped")
    for wrong in (["--fault", "drift:rate=2"], ["--chunked-prefill-size", "0"]):
        with pytest.raises(SystemExit) as stopped:
            parse_arguments(wrong)
        assert stopped.value.code == 2
        assert wrong[1].rpartition("=")[2] in capsys.readouterr().err.splitlines()[-1]
