"""What a dry run says it would send, in the words of each engine's own API."""

import io
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
from rich.console import Console

from fidelity import dry_run
from fidelity.plan import build
from fidelity.servers.running import RunningServer

from .fake_openai import FakeOpenAI
from .fake_sglang import FakeSglang
from .fake_vllm import FakeVLLM

URL = "http://server"


def _llamacpp() -> httpx.Client:
    pages = {
        "/props": {"total_slots": 1, "default_generation_settings": {}},
        "/v1/models": {"data": [{"id": "m", "meta": {"n_vocab": 512}}]},
    }

    def handle(request: httpx.Request) -> httpx.Response:
        page = pages.get(request.url.path)
        return httpx.Response(404) if page is None else httpx.Response(200, json=page)

    return httpx.Client(base_url=URL, transport=httpx.MockTransport(handle))


SERVERS = {
    "sglang": lambda: FakeSglang().client(),
    "vllm": lambda: FakeVLLM().client(),
    "llamacpp": _llamacpp,
    "openai": lambda: FakeOpenAI().client(),
}


@pytest.mark.parametrize(
    ("engine", "path", "says", "never"),
    [
        ("sglang", "/generate", ["GET /v1/loads", "GET /server_info and", "POST /tokenize"], ["/metrics"]),
        (
            "vllm",
            "/v1/completions",
            ["GET /metrics on both", "GET /v1/models, /version", "POST /tokenize"],
            ["/generate", "/v1/loads", "/detokenize", "sent as text"],
        ),
        (
            "llamacpp",
            "/completion",
            ["GET /slots and /metrics on both", "GET /props", "POST /apply-template and /tokenize"],
            ["/generate", "/v1/loads", "/server_info", "/detokenize", "sent as text"],
        ),
        (
            "openai",
            "/v1/chat/completions",
            ["GET /v1/models once", "one more for each field"],
            ["/generate", "/v1/loads", "/server_info", "tokenize", "sent as text"],
        ),
    ],
)
def test_each_engine_in_its_own_words(
    engine: str, path: str, says: list[str], never: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def attached(_target: object) -> Iterator[RunningServer]:
        with SERVERS[engine]() as client:
            yield RunningServer(url=URL, owned=False, client=client)

    monkeypatch.setattr(dry_run, "attach", attached)
    target = {"kind": "attach", "url": URL, "engine": engine}
    plan = build({"target": target, "probes": ["resend"], "max_requests": 99})
    out = io.StringIO()
    dry_run.dry_run(plan, Console(file=out, width=300))
    told = out.getvalue()
    for words in (f"nothing was sent to {URL}{path}", f"requests to {path}", f"99 requests to {path}", *says):
        assert words in told
    for words in never:
        assert words not in told
