import json
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from fidelity.engines import sglang
from fidelity.errors import UnreachableError, UsageError
from fidelity.plan import Target
from fidelity.servers import attach as module
from fidelity.servers.attach import attach
from fidelity.servers.credentials import KEY_VARIABLE

TLS = Path(__file__).parent / "tls"


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.server.seen.append((self.path, self.headers.get("authorization")))  # type: ignore[attr-defined]
        body = json.dumps({"version": "0.5.21", "model_path": self.path}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def secure() -> Iterator[SimpleNamespace]:
    """An HTTPS server whose certificate the test authority signed; `seen` are (path, authorization)."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.seen = []  # type: ignore[attr-defined]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "server.pem")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    url = f"https://127.0.0.1:{server.server_address[1]}"
    yield SimpleNamespace(url=url, seen=server.seen)  # type: ignore[attr-defined]
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("url", ["", "localhost:30000", "ftp://host", "30000"])
def test_what_is_no_url_is_refused_before_anything_is_sent(url: str) -> None:
    with pytest.raises(UsageError, match=f"'{url}' is not a URL"), attach(Target(url=url)):
        pass


def test_the_server_is_not_ours() -> None:
    with attach(Target(url="http://host:30000/", timeout=7)) as server:
        assert not server.owned
        assert server.url == "http://host:30000"
        assert server.died() is None
        assert server.client.timeout == httpx.Timeout(7)
        assert "authorization" not in server.client.headers
    assert server.client.is_closed


def test_the_key_comes_from_the_environment_and_is_in_no_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "not-a-real-key")
    target = Target(url="http://host")
    with attach(target) as server:
        assert server.client.headers["authorization"] == "Bearer not-a-real-key"
    assert "not-a-real-key" not in json.dumps(target.model_dump(mode="json"))
    assert "not-a-real-key" not in repr(server)


def test_a_private_authority_a_base_path_and_a_key(
    secure: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "not-a-real-key")
    with attach(Target(url=f"{secure.url}/tenants/a/", ca_file=TLS / "authority.pem")) as server:
        assert sglang.facts(server.client).version == "0.5.21"
    assert secure.seen == [
        ("/tenants/a/server_info", "Bearer not-a-real-key"),
        ("/tenants/a/model_info", "Bearer not-a-real-key"),
    ]


def test_a_certificate_nobody_vouches_for_ends_it_before_the_key_is_sent(
    secure: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "not-a-real-key")
    with attach(Target(url=secure.url)) as server, pytest.raises(UnreachableError) as caught:
        sglang.facts(server.client)
    assert "CERTIFICATE_VERIFY_FAILED" in caught.value.message
    assert "--ca-file" in (caught.value.hint or "")
    assert secure.seen == []


def test_a_file_that_holds_no_certificates(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path / "text"):
        (tmp_path / "text").write_text("no certificate")
        with (
            pytest.raises(UsageError, match="is no file of certificates"),
            attach(Target(url="https://h", ca_file=path)),
        ):
            pass


def test_a_rate_spaces_requests_of_any_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=100.0, slept=[])

    def sleep(seconds: float) -> None:
        clock.slept.append(seconds)
        clock.now += seconds

    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock.now, sleep=sleep))
    wait = module.Pace(4).wait
    requests = [httpx.Request("GET", "http://host") for _ in range(4)]
    wait(requests[0])
    wait(requests[1])
    clock.now += 0.1
    wait(requests[2])
    clock.now += 10
    wait(requests[3])
    assert clock.slept == pytest.approx([0.25, 0.15])
    waited = [request.extensions["waited"] for request in requests]
    assert waited == pytest.approx([0, 0.25, 0.15, 0])


def test_the_environments_proxy_is_used_but_not_where_it_is_not_wanted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("https_proxy", "http://proxy:3128")
    monkeypatch.setenv("no_proxy", "inside.example")
    monkeypatch.delenv("http_proxy", raising=False)
    monkeypatch.delenv("all_proxy", raising=False)
    assert module._proxy("https://outside.example") == "http://proxy:3128"
    assert module._proxy("https://inside.example/v1") is None
    assert module._proxy("http://outside.example") is None
