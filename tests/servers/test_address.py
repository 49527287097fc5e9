import pytest

from fidelity.errors import PlanError
from fidelity.plan import build
from fidelity.servers.address import check_url


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("http://host:30000", "http://host:30000"),
        ("http://host:30000/", "http://host:30000"),
        ("https://host/tenants/a/", "https://host/tenants/a"),
        ("http://[::1]:30000", "http://[::1]:30000"),
        ("http://bücher.example", "http://bücher.example"),
        ("http://my_host.:80", "http://my_host.:80"),
    ],
)
def test_an_address_loses_its_last_slash(url: str, base: str) -> None:
    assert check_url(url) == base


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:30000",
        "ftp://host",
        "30000",
        "http://",
        "http://host:port",
        "http://[::1",
        "http://☃☃.:80",
        "http://a..b",
        "http://a b:80",
        "http://host:80/a b",
        "http://host\x00:80",
        "http://host\x1b:80",
        "http://ho\nst:80",
        "http://host:80/a\tb",
        f"http://{'a' * 64}.example",
        f"http://{'☃' * 64}.example",
        "http://xn--\u00e9.example",
        "http://[v1.a]:80",
        "http://host:99999",
    ],
)
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(PlanError, match="is not a URL") as caught:
        check_url(url)
    assert caught.value.hint == "give it as http://HOST:PORT"


@pytest.mark.parametrize(
    "url",
    [
        "https://me:not-a-real-key@host",
        "https://not-a-real-key@host",
        "https://host/v1?key=not-a-real-key",
        "https://host/#not-a-real-key",
        "not-a-real-key@host",
    ],
)
def test_a_secret_in_the_address_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(PlanError) as caught:
        build({"target": {"kind": "attach", "url": url}})
    assert "not-a-real-key" not in f"{caught.value.message} {caught.value.hint}"
