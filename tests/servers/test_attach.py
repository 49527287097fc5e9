import json

import httpx
import pytest

from fidelity.errors import UsageError
from fidelity.plan import Target
from fidelity.servers.attach import attach
from fidelity.servers.credentials import KEY_VARIABLE


@pytest.mark.parametrize("url", ["", "localhost:30000", "ftp://host", "30000"])
def test_what_is_no_url_is_refused_before_anything_is_sent(url: str) -> None:
    with pytest.raises(UsageError, match=f"'{url}' is not a URL") as caught, attach(Target(url=url)):
        pass
    assert caught.value.hint == "give it as http://HOST:PORT"


def test_the_server_is_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
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
