"""A server behind a socket that keeps the time of every request, and misbehaves where it is told to."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx

CUT, STALLED = "cut", "stalled"
"""Half of the right answer, and then the end of the connection or nothing more."""

Way = Callable[[str, str, int], httpx.Response | str | None]


@dataclass(frozen=True)
class Seen:
    at: float
    method: str
    path: str
    body: bytes


class Counting(ThreadingHTTPServer):
    """`fake` answers, unless `way(method, path, n)` does, n counting the requests of its method and path
    from 1."""

    daemon_threads = True

    def __init__(self, fake: Any) -> None:
        self.fake, self.seen = fake, list[Seen]()
        self.way: Way = lambda method, path, number: None
        self.lock, self.over = threading.Lock(), threading.Event()
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def of(self, method: str, path: str) -> list[Seen]:
        return [one for one in self.seen if (one.method, one.path) == (method, path)]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Counting

    def do_GET(self) -> None:
        server = self.server
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        with server.lock:
            server.seen.append(Seen(time.monotonic(), self.command, self.path, body))
            way = server.way(self.command, self.path, len(server.of(self.command, self.path)))
            answer = way if isinstance(way, httpx.Response) else None
            answer = answer or server.fake.handle(
                httpx.Request(self.command, f"http://fake{self.path}", content=body)
            )
        self.send_response(answer.status_code)
        self.send_header("content-length", str(len(answer.content)))
        for name in ("retry-after", "location", "x-replica-id"):
            if name in answer.headers:
                self.send_header(name, answer.headers[name])
        self.end_headers()
        if isinstance(way, str):
            self.wfile.write(answer.content[: len(answer.content) // 2])
            if way == STALLED:
                server.over.wait(20)
            self.close_connection = True
            return
        self.wfile.write(answer.content)

    def do_POST(self) -> None:
        self.do_GET()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(fake: Any) -> Iterator[Counting]:
    server = Counting(fake)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield server
    finally:
        server.over.set()
        server.shutdown()
        server.server_close()
