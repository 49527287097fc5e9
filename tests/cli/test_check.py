"""`fidelity check` against a deployment somebody else runs: what it sends, what it never does, what it
keeps to itself."""

import json
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from fidelity.cli import main
from fidelity.servers.credentials import KEY_VARIABLE

from .conftest import Done

KEY = "sk-not-a-real-key-4711"
SMALL = ("--prompts", "3", "--tail", "1", "--control", "33", "--max-rate", "0.7")
Check = Callable[..., Done]


class Front(ThreadingHTTPServer):
    """The sglang in memory behind a socket and a base path. `key`: what a request must carry, if anything;
    `most` requests were in it at once."""

    daemon_threads = True

    def __init__(self, fake: Any) -> None:
        self.fake, self.key, self.base = fake, "", ""
        self.inside = self.most = 0
        self.lock = threading.Lock()
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}{self.base}"

    def answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> httpx.Response:
        given = f"{headers.get('authorization', '')} {headers.get('x-api-key', '')}"
        if self.key not in given or not path.startswith(f"{self.base}/"):
            return httpx.Response(401, json={"error": {"message": f"Incorrect API key provided: {given}"}})
        request = httpx.Request(method, f"http://fake{path.removeprefix(self.base)}", content=body)
        with self.lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
        try:
            return self.fake.handle(request)
        finally:
            with self.lock:
                self.inside -= 1


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Front

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        answer = self.server.answer(self.command, self.path, headers, body)
        self.send_response(answer.status_code)
        self.send_header("content-length", str(len(answer.content)))
        self.end_headers()
        self.wfile.write(answer.content)

    def do_POST(self) -> None:
        self.do_GET()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def front(fake_sglang: Any) -> Iterator[Front]:
    server = Front(fake_sglang())
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def check(
    tmp_path: Path,
    prompt_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Check:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.chdir(tmp_path)

    def call(url: str, *words: str) -> Done:
        directory = tmp_path / "run"
        more = ["--prompt-folder", str(prompt_folder), "--output", str(directory)]
        monkeypatch.setattr(sys, "argv", ["fidelity", "check", url, *more, *words])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return Done(int(ended.value.code or 0), out, err, directory)

    return call


def everything(done: Done) -> str:
    """All that was printed and written."""
    files = [path for path in done.directory.rglob("*") if path.is_file()] if done.directory.exists() else []
    return done.out + done.err + "".join(path.read_text(encoding="utf-8") for path in files)


def test_a_healthy_deployment_passes_one_request_at_a_time(front: Front, check: Check) -> None:
    done = check(front.url, *SMALL)
    assert done.code == 0, done.out + done.err
    assert front.most == 1
    told = {"/server_info", "/model_info", "/tokenize", "/v1/loads", "/generate"}
    assert set(front.fake.paths) == told  # no flush, and no health check that would compute a token
    assert all(isinstance(body["input_ids"][0], int) for body in front.fake.bodies)
    assert "guards unknown" in done.out
    assert "health-probe" in done.out
    hits = done.hits(193)
    assert [(hit["alone"], hit["computed"]) for hit in hits] == [(True, 1)] * 6


def test_allow_load_permits_one_batch(front: Front, check: Check) -> None:
    done = check(front.url, *SMALL, "--allow-load")
    assert done.code == 0, done.out + done.err
    batches = [body for body in front.fake.bodies if isinstance(body["input_ids"][0], list)]
    assert [len(body["input_ids"]) for body in batches] == [4]


@pytest.mark.parametrize("way", ["environment", "file"])
def test_the_key_gets_in_and_is_printed_and_written_nowhere(
    way: str, front: Front, check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    front.key, front.base = KEY, "/tenants/acme"
    said = {"error": {"message": f"too many requests for {KEY}"}}
    front.fake.hooks[25] = lambda: httpx.Response(429, json=said)
    front.fake.info = {"api_key": KEY, "launch_command": f"sglang serve --api-key {KEY}", "motd": f"hi {KEY}"}
    words = list(SMALL)
    if way == "environment":
        monkeypatch.setenv(KEY_VARIABLE, KEY)
    else:
        (tmp_path / "headers").write_text(f"# for the gateway\nX-Api-Key: {KEY}\n")
        words += ["--header-file", str(tmp_path / "headers")]
    done = check(front.url, *words)
    assert done.code == 0, done.out + done.err
    assert KEY not in everything(done)
    refused = [obs for obs in done.observations if obs["answer"]["status"] == 429]
    assert [obs["answer"]["error"] for obs in refused] == ["HTTP 429: too many requests for (hidden)"]
    assert '"motd": "hi (hidden)"' in (done.directory / "server-none.json").read_text()


def test_a_wrong_key_is_told_and_not_repeated(
    front: Front, check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    front.key = "another"
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    done = check(front.url)
    assert done.code == 3
    assert "refuses the request (401)" in done.out
    assert KEY_VARIABLE in done.out
    assert KEY not in everything(done)
    assert front.fake.bodies == []


def test_a_secret_in_the_address_is_refused_before_anything_is_written(check: Check, tmp_path: Path) -> None:
    done = check(f"http://user:{KEY}@127.0.0.1:1")
    assert done.code == 2
    assert "--header-file" in done.err
    assert KEY not in everything(done)
    assert not done.directory.exists()


def test_the_served_model_is_checked(front: Front, check: Check) -> None:
    done = check(front.url, "--served-model", "Qwen3.6-35B-A3B-FP8")
    assert done.code == 3
    assert "the server serves fake, not Qwen3.6-35B-A3B-FP8" in done.out
    assert front.fake.bodies == []


def test_the_right_served_model(front: Front, check: Check) -> None:
    front.fake.info = {"served_model_name": "prod"}
    assert check(front.url, *SMALL, "--served-model", "prod").code == 0


@pytest.mark.parametrize("most", [1, 30])
def test_max_requests_ends_as_partial_and_never_as_a_pass(most: int, front: Front, check: Check) -> None:
    done = check(front.url, *SMALL, "--max-requests", str(most))
    assert done.code == 11
    assert len(front.fake.bodies) == most
    assert (done.summary["status"], done.summary["partial"]) == ("out of requests", True)
    assert f"the {most} requests of the plan are sent" in done.out


def test_the_question_for_the_vocabulary_counts_as_a_request(front: Front, check: Check) -> None:
    front.fake.info = {"vocab_size": None}
    done = check(front.url, *SMALL, "--max-requests", "5")
    assert done.code == 11
    assert len(front.fake.bodies) == 5
    assert len(done.observations) == 4
    assert all("input_ids" in body for body in front.fake.bodies)


def test_a_dry_run_says_what_a_run_then_sends(front: Front, check: Check) -> None:
    said = check(front.url, *SMALL, "--allow-load", "--dry-run", "--max-requests", "500", "--rate", "100")
    assert said.code == 0, said.out + said.err
    assert set(front.fake.paths) == {"/server_info", "/model_info", "/v1/loads"}
    assert not said.directory.exists()
    rows = {
        " ".join(words[:-3]): [int(word) for word in words[-3:]]
        for words in map(str.split, said.out.splitlines())
        if len(words) > 3 and all(word.isdigit() for word in words[-3:])
    }
    done = check(front.url, *SMALL, "--allow-load")
    sent: dict[str, list[int]] = {}
    for obs in done.observations:
        name = {"warmup": "warm-up", "screen": "screening"}.get(obs["role"], f"{obs['kind']} {obs['cell']}")
        name = f"decode, {obs['cell']}" if obs["probe"] == "decode" else name
        row = sent.setdefault(name, [0, 0, 0])
        for place, count in enumerate((1, obs["answer"]["prompt_tokens"], len(obs["answer"]["output_ids"]))):
            row[place] += count
    kinds = {"warm-up", "screening", "suspect L=193 tail=1", "control L=225 tail=33", "decode, T=0"}
    assert set(sent) == kinds
    sent["in all"] = [sum(row[place] for row in sent.values()) for place in range(3)]
    # An open prompt's length is not known before the server has tokenized it.
    about = {name: (rows.pop(name), sent.pop(name)) for name in ("decode, T=0", "in all")}
    assert rows == sent
    for foreseen, found in about.values():
        assert (foreseen[0], foreseen[2]) == (found[0], found[2])
    assert "at most: 500 requests to /generate, 100 requests of any kind a second" in said.out
    assert "GET /v1/loads on both sides of each of 18 hits and decodes" in said.out
    assert front.fake.paths.count("/v1/loads") == 1 + 1 + 2 * 18


def test_a_dry_run_of_a_server_that_is_not_there(check: Check) -> None:
    done = check("http://127.0.0.1:9", "--dry-run")
    assert done.code == 3
    assert "no answer from http://127.0.0.1:9" in done.err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--rate", "0"), "target.rate"),
        (("--max-requests", "0"), "max_requests"),
        (("--ca-file", "nowhere.pem"), "nowhere.pem is no file of certificates"),
        (("--header-file", "nowhere"), "cannot read the header file nowhere"),
    ],
)
def test_options_that_cannot_be_used(words: tuple[str, ...], says: str, front: Front, check: Check) -> None:
    done = check(front.url, *words)
    assert done.code == 2
    assert says in done.out + done.err
    assert front.fake.paths == []


def test_the_options_are_kept_with_the_plan(front: Front, check: Check, tmp_path: Path) -> None:
    (tmp_path / "headers").write_text(f"X-Api-Key: {KEY}\n")
    words = ("--header-file", "headers", "--assume-idle", "--rate", "500", "--max-requests", "900")
    done = check(front.url, *SMALL, *words)
    assert done.code == 0, done.out + done.err
    plan = json.loads((done.directory / "manifest.json").read_text())["plan"]
    kept = (plan["target"]["header_file"], plan["target"]["assume_idle"], plan["target"]["rate"])
    assert (*kept, plan["max_requests"]) == ("headers", True, 500.0, 900)
    assert "--assume-idle" in (done.directory / "report.md").read_text()
    assert KEY not in everything(done)
