"""The server as a process: its socket, its log, and the ways it is told to stop."""

import contextlib
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from types import FrameType

import uvicorn

from .app import create_app
from .service import start
from .settings import Settings

GRACE = 1  # seconds that requests in flight have to end after a signal


def serve(settings: Settings, host: str, port: int, watch_stdin: bool) -> int:
    """Load, listen, announce and serve until told to stop; the exit status."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _exit)
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="[%(asctime)s] %(message)s", datefmt="%Y-%m-%d %H:%M:%S"
    )
    sys.setswitchinterval(0.001)  # the engine's thread computes in long stretches: let replies through
    try:
        listener = _listen(host, port)
        service = start(settings)
    except (OSError, ValueError, KeyError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 3
    config = uvicorn.Config(
        create_app(service),
        http="h11",
        ws="none",
        lifespan="off",
        loop="asyncio",
        log_config=None,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=GRACE,
    )
    server = uvicorn.Server(config)
    if watch_stdin:
        threading.Thread(target=_stop_at_eof, args=(server,), name="stdin", daemon=True).start()
    bound = listener.getsockname()[1]
    shown = f"[{host}]" if ":" in host else host
    sys.stdout.write(json.dumps({"port": bound, "pid": os.getpid(), "url": f"http://{shown}:{bound}"}) + "\n")
    sys.stdout.flush()
    try:
        server.run(sockets=[listener])
    finally:
        service.scheduler.stop()
    return 0


def _listen(host: str, port: int) -> socket.socket:
    """A socket that already takes connections: they wait until the server answers them."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol by name: asyncio switches off Nagle's delay, 40 ms a reply, only where it sees TCP.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host, port))
    listener.listen(2048)
    return listener


def _exit(_: int, __: FrameType | None) -> None:
    """End with status 0: uvicorn raises the signal again once it has shut down."""
    raise SystemExit(0)


def _stop_at_eof(server: uvicorn.Server) -> None:
    with contextlib.suppress(OSError, ValueError):
        while sys.stdin.buffer.read(4096):
            pass
    server.should_exit = True
    time.sleep(GRACE + 1)
    os._exit(0)  # a forward that outlasts the grace must not outlive the parent
