"""The client of somebody else's server: as many requests as it said, no faster than allowed, nothing flushed,
and a clear end where it is refused."""

import json
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from fidelity.probes.session import PATIENCE

from ..fake_openai import FakeOpenAI
from ..fake_sglang import FakeSglang
from .conftest import Done
from .counting import CUT, STALLED, Counting, Seen, serving

TLS = Path(__file__).parents[1] / "servers" / "tls"
PATH = {"sglang": "/generate", "openai": "/v1/chat/completions"}
PAGES = {
    "sglang": {"/server_info", "/model_info", "/tokenize", "/v1/loads", "/generate"},
    "openai": {"/server_info", "/model_info", "/v1/models", "/v1/chat/completions"},
}
HTML = httpx.Response(200, text="<!doctype html><title>Sign in</title>")
PLAN = """
target: {timeout: 1.0}
prompts: {count: 3}
probes: [resend]
resend: {warmup_sends: 2, warmup_tokens: 4}
"""
Check = Callable[..., Done]


@pytest.fixture(params=["sglang", "openai"])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def server(engine: str) -> Iterator[Counting]:
    with serving(FakeOpenAI() if engine == "openai" else FakeSglang()) as counting:
        yield counting


@pytest.fixture
def check(here: Callable[..., Done], prompt_folder: Path, engine: str, tmp_path: Path) -> Check:
    (tmp_path / "plan.yaml").write_text(PLAN)

    def call(url: str, *words: str) -> Done:
        tails = ("--tail", "1", "--max-rate", "0.7", "--engine", engine, "--assume-idle")
        more = ("--prompt-folder", str(prompt_folder), "--config", "plan.yaml", *tails)
        done = here("check", url, *more, *words)
        assert "Traceback" not in done.out + done.err
        return done

    return call


def named(one: Seen, engine: str) -> str:
    """The namespace of a request, in its own words."""
    return json.dumps(json.loads(one.body)["messages" if engine == "openai" else "extra_key"])


def at_a_hit(server: Counting, engine: str, way: httpx.Response | str) -> list[Seen]:
    """Misbehave once: at the first measured re-send, which is then kept in the list."""
    bad: list[Seen] = []

    def answer(method: str, path: str, number: int) -> httpx.Response | str | None:
        if path != PATH[engine] or bad:
            return None
        asks = [one for one in server.of("POST", path) if b"and now" in one.body or engine == "sglang"]
        names = [named(one, engine) for one in asks]
        if not asks or asks[-1] is not server.seen[-1] or names[-1] not in names[:-1]:
            return None
        bad.append(server.seen[-1])
        return way

    server.way = answer
    return bad


def foreseen(done: Done) -> dict[str, int]:
    """The requests of each row of a dry run's table."""
    rows = [line.split() for line in done.out.splitlines()]
    counted = [row for row in rows if len(row) > 3 and all(word.isdigit() for word in row[-3:])]
    return {" ".join(row[:-3]): int(row[-3]) for row in counted}


@pytest.mark.parametrize("more", [(), ("--probe", "resend", "--probe", "decode")])
def test_as_many_requests_as_the_dry_run_says(
    more: tuple[str, ...], server: Counting, check: Check, engine: str
) -> None:
    # Longer ones need numbers of three digits, whose length takes a few sends more to learn.
    more = (*more, "--length", "194")
    said = check(server.url, "--dry-run", *more)
    assert said.code == 0, said.out + said.err
    assert not [one for one in server.seen if one.method == "POST"]
    assert f"requests to {PATH[engine]}" in said.out
    rows = foreseen(said)
    done = check(server.url, *more)
    assert done.code == 11, done.out + done.err
    grid = len([obs for obs in done.observations if obs["role"] == "grid"])
    spared = rows.pop("cache grid (at most)", 0) - grid
    assert spared >= 0
    assert len(server.of("POST", PATH[engine])) == rows.pop("in all") - spared == sum(rows.values()) + grid
    sent: dict[str, int] = {}
    for obs in [obs for obs in done.observations if obs["role"] != "grid"]:
        role, cell = obs["role"], f"{obs['kind']} {obs['cell']}"
        name = {"warmup": "warm-up", "screen": "screening"}.get(role, cell)
        name = f"decode, {obs['cell']}" if obs["probe"] == "decode" else name
        sent[name] = sent.get(name, 0) + 1
    assert sent == {name: count for name, count in rows.items() if name not in ("what it takes", "lengths")}


def test_nothing_is_flushed_and_no_health_page_is_asked(server: Counting, check: Check, engine: str) -> None:
    check(server.url)
    assert {one.path for one in server.seen} <= PAGES[engine]


def test_the_rate_holds_over_requests_of_every_kind(server: Counting, check: Check) -> None:
    check(server.url, "--rate", "40", "--max-requests", "30")
    times = [one.at for one in server.seen]
    assert len(times) > 30
    # A request may be late on its way, so that the next one comes sooner after it: not so over ten.
    gaps = [late - early for early, late in zip(times, times[10:], strict=False)]
    assert min(gaps) > 9 / 40


@pytest.mark.parametrize("status", [429, 503])
def test_a_refused_pair_begins_again_in_a_new_namespace_after_the_wait(
    status: int, server: Counting, check: Check, engine: str
) -> None:
    refusal = httpx.Response(status, headers={"retry-after": "1"}, json={"error": {"message": "slow down"}})
    bad = at_a_hit(server, engine, refusal)
    done = check(server.url)
    # A 503 is the server's own failure, whatever it asks for.
    assert done.code == (0 if (engine, status) == ("sglang", 429) else 11), done.out + done.err
    (failed,) = [obs for obs in done.observations if obs["answer"]["status"] == status]
    assert failed["answer"]["error"] == f"HTTP {status}: slow down; the server asks to wait 1 s"
    assert (failed["probe"], failed["role"]) == ("resend", "hit")
    assert "a request failed, started again" in done.out
    again = [obs for obs in done.observations if obs["group"] == failed["group"] and obs["role"] != "screen"]
    assert {obs["attempt"] for obs in again} == {0, 1}
    assert not {obs["namespace"] for obs in again if obs["attempt"]} & {
        obs["namespace"] for obs in again if not obs["attempt"]
    }
    later = [one for one in server.seen if one.at > bad[0].at]
    sent = [one for one in later if one.path == PATH[engine]]
    assert all(named(one, engine) != named(bad[0], engine) for one in sent)
    assert min(one.at for one in later) - bad[0].at >= 0.99


def test_a_server_that_goes_on_refusing_is_left_alone(server: Counting, check: Check, engine: str) -> None:
    refusal = httpx.Response(429, headers={"retry-after": "0"}, json={"error": "too many"})
    server.way = lambda method, path, n: refusal if path == PATH[engine] else None
    done = check(server.url)
    assert done.code == 3
    assert "HTTP 429: too many" in done.out
    assert len(server.of("POST", PATH[engine])) <= PATIENCE


@pytest.mark.parametrize(("status", "first"), [(401, 1), (403, 25)])
def test_a_key_that_is_no_good_ends_the_run(
    status: int, first: int, server: Counting, check: Check, engine: str
) -> None:
    refusal = httpx.Response(status, json={"error": "no"})
    server.way = lambda method, path, n: refusal if path == PATH[engine] and n >= first else None
    done = check(server.url)
    assert done.code == 3
    assert f"refuses the request ({status})" in done.out
    assert len(server.of("POST", PATH[engine])) == first


@pytest.mark.parametrize(
    ("way", "says"),
    [
        (httpx.Response(401), "refuses the request (401)"),
        (httpx.Response(403), "refuses the request (403)"),
        (httpx.Response(302, headers={"location": "https://login.example/"}), "redirects to https://login"),
    ],
)
def test_a_page_that_is_not_the_servers_is_told_at_once(
    way: httpx.Response, says: str, server: Counting, check: Check
) -> None:
    server.way = lambda method, path, n: way
    done = check(server.url)
    assert done.code == 3
    assert says in done.out
    assert len(server.seen) == 1


def test_html_from_a_proxy_is_no_server(server: Counting, check: Check, engine: str) -> None:
    server.way = lambda method, path, n: HTML
    done = check(server.url)
    assert done.code == 3
    assert ("not as an sglang server" if engine == "sglang" else "the body is not JSON") in done.out


BAD = {
    "html": (HTML, "the body is not JSON"),
    "cut": (CUT, "RemoteProtocolError"),
    "stalled": (STALLED, "ReadTimeout"),
    "truncated": (httpx.Response(200, text='{"text": "Par'), "the body is not JSON"),
    "redirect": (httpx.Response(307, headers={"location": "/elsewhere"}), "HTTP 307"),
    "crash": (httpx.Response(500, text="Internal Server Error"), "HTTP 500: Internal Server Error"),
}


@pytest.mark.parametrize("bad", BAD)
def test_one_bad_answer_is_recorded_and_its_pair_begun_again(
    bad: str, server: Counting, check: Check, engine: str
) -> None:
    way, says = BAD[bad]
    at_a_hit(server, engine, way)
    done = check(server.url)
    failed = [obs["answer"] for obs in done.observations if obs["answer"]["error"]]
    assert len(failed) == 1
    assert says in failed[0]["error"]
    assert done.code in (0, 11)
    measured = [cell for cell in done.arm("none")["cells"] if cell["probe"] == "resend"]
    assert {cell["exercised"] for cell in measured} == {3}
    # What the server itself failed is no pass, though the second try was fine.
    assert (done.code == 0) == (engine == "sglang" and failed[0]["status"] in (200, 307))
    assert not [one for one in server.seen if one.path == "/elsewhere"]


@pytest.mark.parametrize("bad", ["html", "cut"])
def test_bad_answers_from_the_25th_on_are_no_pass(
    bad: str, server: Counting, check: Check, engine: str
) -> None:
    way, _ = BAD[bad]
    server.way = lambda method, path, n: way if path == PATH[engine] and n >= 25 else None
    done = check(server.url)
    assert done.code in (3, 11)
    assert done.summary["state"] != "pass"


def test_an_untrusted_certificate_is_told(check: Check, engine: str) -> None:
    with serving(FakeSglang()) as server:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(TLS / "server.pem")
        server.socket = context.wrap_socket(server.socket, server_side=True)
        done = check(server.url.replace("http://", "https://"))
        assert done.code == 3
        assert "--ca-file" in done.out
        assert json.loads((done.directory / "manifest.json").read_text())["status"] == "failed"
