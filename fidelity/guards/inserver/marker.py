"""What one server process does under the guard, told in a JSON file that is replaced whole."""

from __future__ import annotations

import atexit
import hashlib
import inspect
import json
import os
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

from .process import command_line, process_title, role, versions

SECONDS = 1.0
MAX_SHAPES = 64
MAX_ERRORS = 20
OTHER = "other shapes"


class Marker:
    """The marker of this process. Written when something new happens, else at most once in `SECONDS` while
    calls come in, and at exit: a process that is killed may have made more calls than its file says."""

    def __init__(self, guard: str, directory: Path) -> None:
        self.guard = guard
        self.directory = directory
        self.loaded_at = time.time()
        self.wrapped: str | None = None
        self.source_sha256: str | None = None
        self.active = False
        self.waits_for: str | None = None
        self.environment: dict[str, str | None] = {}
        self.errors: list[str] = []
        self.error_count = 0
        self._start_counting()
        atexit.register(self._at_exit)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._after_fork)

    def _start_counting(self) -> None:
        self.calls = self.lowered = 0
        self.shapes: dict[str, list[int]] = {}
        self._lock = threading.RLock()
        self._written_at = 0.0
        self._file: Path | None = None
        self._said_unwritable = False

    def _after_fork(self) -> None:
        # A forked child has the wrap but is no server process until it calls it.
        self.loaded_at = time.time()
        self._start_counting()

    def _at_exit(self) -> None:
        if self._file is not None:
            self.write()

    def wraps(self, path: str, original: object) -> None:
        """The object at the dotted `path` is wrapped from now on; `original` is what it was."""
        self.active, self.wrapped, self.waits_for = True, path, None
        try:
            source = inspect.getsource(original)  # type: ignore[arg-type]
        except (OSError, TypeError):
            source = None
        self.source_sha256 = hashlib.sha256(source.encode()).hexdigest() if source else None
        say(f"guard {self.guard}: {path} is wrapped in process {os.getpid()}")
        self.write()

    def call(self, shape: str | None = None, *, lowered: bool = False) -> None:
        """Count one call of the wrapped object; `shape` names what is worth counting apart."""
        with self._lock:
            self.calls += 1
            self.lowered += lowered
            news = self.calls & (self.calls - 1) == 0
            if shape is not None:
                if shape not in self.shapes and len(self.shapes) >= MAX_SHAPES:
                    shape = OTHER
                news = news or shape not in self.shapes
                counts = self.shapes.setdefault(shape, [0, 0])
                counts[0] += 1
                counts[1] += lowered
            if news or time.monotonic() - self._written_at >= SECONDS:
                self.write()

    def error(self, doing: str, exc: BaseException | str) -> None:
        """Keep what went wrong (the first of many; all are counted)."""
        with self._lock:
            self.error_count += 1
            if len(self.errors) < MAX_ERRORS:
                self.errors.append(f"{doing}: {_told(exc)}")
                say(f"guard {self.guard}: {self.errors[-1].splitlines()[0]}")
                self.write()

    def write(self) -> None:
        """Replace the file. A folder that cannot be written is told on stderr, once."""
        with self._lock:
            self._written_at = time.monotonic()
            try:
                path = self._file or self.directory / f"{os.getpid()}-{int(self.loaded_at * 1000)}.json"
                self._file = path
                unfinished = path.with_suffix(".tmp")
                unfinished.write_text(json.dumps(self._content(), indent=1), encoding="utf-8")
                # The server may run as another user, with a private umask.
                unfinished.chmod(0o644)
                unfinished.replace(path)
            except Exception as exc:
                if not self._said_unwritable:
                    self._said_unwritable = True
                    say(f"guard {self.guard}: cannot write a marker to {self.directory}: {exc}")

    def _content(self) -> dict[str, Any]:
        title = process_title()
        return {
            "guard": self.guard,
            "pid": os.getpid(),
            "ppid": os.getppid(),
            "role": role(title, called=self.calls > 0),
            "title": title if title.startswith("sglang::") else "",
            "argv": command_line(),
            "versions": versions(),
            "active": self.active,
            "wrapped": self.wrapped,
            "source_sha256": self.source_sha256,
            "waits_for": self.waits_for,
            "environment": self.environment,
            "calls": self.calls,
            "lowered": self.lowered,
            "shapes": {
                shape: {"calls": calls, "lowered": lowered} for shape, (calls, lowered) in self.shapes.items()
            },
            "errors": self.errors,
            "error_count": self.error_count,
            "loaded_at": self.loaded_at,
            "updated_at": time.time(),
        }


def say(message: str) -> None:
    """One line into the server's log."""
    try:
        sys.stderr.write(f"fidelity: {message}\n")
        sys.stderr.flush()
    except Exception:  # a closed or broken log is no reason to break a server
        return


def _told(exc: BaseException | str) -> str:
    if isinstance(exc, str):
        return exc
    where = "".join(traceback.format_tb(exc.__traceback__, limit=-3))
    return f"{type(exc).__name__}: {exc}\n{where}".rstrip()
