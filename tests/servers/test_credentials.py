"""Headers from the environment and a file; nothing of them in any message."""

from pathlib import Path

import httpx
import pytest

from fidelity.errors import UsageError
from fidelity.servers.credentials import KEY_VARIABLE, Discreet, read_headers

KEY = "not-a-real-key"


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)


def test_no_key_is_no_header() -> None:
    assert read_headers(None) == {}


def test_a_key_is_a_bearer_token_and_the_file_wins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(KEY_VARIABLE, f" {KEY}\n")
    assert read_headers(None) == {"authorization": f"Bearer {KEY}"}
    file = tmp_path / "headers"
    file.write_text(f"# ours\n\nX-Api-Key: {KEY}\n  Authorization : Basic abc:def\n")
    assert read_headers(file) == {"authorization": "Basic abc:def", "x-api-key": KEY}


@pytest.mark.parametrize(
    "line", [KEY, f": {KEY}", f"X Y: {KEY}", "X-Key:", f"X-Key: {KEY}\x00", f"X-Key: {KEY}é"]
)
def test_a_bad_line_is_named_by_its_number_only(line: str, tmp_path: Path) -> None:
    file = tmp_path / "headers"
    file.write_text(f"X-Tenant: acme\n{line}\n", encoding="utf-8")
    with pytest.raises(UsageError, match="line 2 is not a header") as caught:
        read_headers(file)
    assert KEY not in f"{caught.value.message} {caught.value.hint}"


def test_a_key_that_no_header_can_carry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, f"{KEY}\nX-Other: 1")
    with pytest.raises(UsageError, match=KEY_VARIABLE) as caught:
        read_headers(None)
    assert KEY not in caught.value.message


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        read_headers(tmp_path / "none")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="not UTF-8"):
        read_headers(tmp_path / "binary")


def test_an_answer_that_repeats_the_key_is_read_without_it() -> None:
    def gateway(request: httpx.Request) -> httpx.Response:
        said = {"error": f"invalid {request.headers['authorization']}", "logprob": -0.25}
        return httpx.Response(401, json=said, headers={"x-seen": KEY})

    transport = Discreet(httpx.MockTransport(gateway), (f"Bearer {KEY}", KEY))
    headers = {"authorization": f"Bearer {KEY}"}
    with httpx.Client(transport=transport, base_url="http://fake", headers=headers) as client:
        response = client.get("/generate")
    assert response.status_code == 401
    assert response.json() == {"error": "invalid (hidden)", "logprob": -0.25}
    assert response.headers["x-seen"] == "(hidden)"


def test_an_unpacked_answer_can_be_read() -> None:
    """Compressed and chunked bodies arrive unpacked: their old headers must not stay."""
    import gzip

    packed = gzip.compress(b'{"text": "Paris"}')
    inner = httpx.MockTransport(
        lambda _: httpx.Response(200, content=packed, headers={"content-encoding": "gzip"})
    )
    with httpx.Client(transport=Discreet(inner, ()), base_url="http://fake") as client:
        assert client.get("/").json() == {"text": "Paris"}
