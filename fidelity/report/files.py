"""Writing one report file whole or not at all."""

from pathlib import Path

from fidelity.errors import ResultsError


def write_text(path: Path, text: str) -> None:
    """`text` as UTF-8 at `path`; a reader never sees half of it. Raises ResultsError."""
    part = path.with_name(path.name + ".part")
    try:
        # A server's answer may hold a lone surrogate, which UTF-8 cannot carry.
        part.write_text(text, encoding="utf-8", errors="backslashreplace")
        part.replace(path)
    except OSError as exc:
        raise ResultsError(f"cannot write {path}: {exc.strerror}", "give another --output folder") from exc
