"""summary.json: the verdict and what the run was, for programs.

    {"schema": 1,
     "label": "...",                    what hardware or simulation the figures speak of
     "verdict": {...},                  fidelity.verdicts.RunVerdict, nested
     "run": {"plan", "argv", "version", "python", "platform"},
     "servers": {ARM: {"facts", "tokenizer", "prompts", "image", "markers"}}}

Floats that JSON cannot carry are the strings "nan", "inf" and "-inf".
"""

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fidelity.errors import ResultsError
from fidelity.manifest import Manifest
from fidelity.report.files import write_text
from fidelity.verdicts import RunVerdict

SCHEMA = 1


def write_summary(path: Path, verdict: RunVerdict, manifest: Manifest) -> None:
    """Raises ResultsError when it cannot be written."""
    data = {
        "schema": SCHEMA,
        "label": verdict.label,
        "verdict": asdict(verdict),
        "run": {
            "plan": manifest.plan.model_dump(mode="json"),
            "argv": manifest.argv,
            "version": manifest.version,
            "python": manifest.python,
            "platform": manifest.platform,
        },
        "servers": {
            name: {
                "facts": arm.facts,
                "tokenizer": arm.tokenizer,
                "prompts": arm.prompts,
                "image": arm.image,
                "markers": arm.markers,
            }
            for name, arm in manifest.arms.items()
        },
    }
    write_text(path, json.dumps(_encoded(data), indent=1, allow_nan=False) + "\n")


def read_summary(path: Path) -> RunVerdict:
    """The verdict of a summary.json; keys of a newer minor version are ignored. Raises ResultsError."""
    from pydantic import TypeAdapter

    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["schema"] != SCHEMA:
            raise ValueError(f"schema {data['schema']!r}, this version reads {SCHEMA}")
        return TypeAdapter(RunVerdict).validate_python(data["verdict"])
    except OSError as exc:
        raise ResultsError(f"cannot read {path}: {exc.strerror}", "give the folder of a run") from exc
    except (ValueError, KeyError, TypeError) as exc:
        raise ResultsError(f"{path} is not a summary of this version: {exc}") from exc


def _encoded(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _encoded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_encoded(item) for item in value]
    return value
