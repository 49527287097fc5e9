"""Keep a run of several probes on a real server as two small files, NAME.json and NAME.md, without single
answers.

usage: record_probes.py RUN OUT NAME LABEL      LABEL: hardware, model and fault, say "healthy, CPU,
quiz-state"
"""

import argparse
import json
from pathlib import Path
from typing import Any

CELL_KEYS = (
    *("probe", "name", "kind", "state", "reason", "prompts", "exercised", "corrupt", "sends"),
    *("rules", "faces", "values", "missed", "readings", "notes"),
)


def summarise(run: Path, label: str) -> dict[str, Any]:
    """What one run showed. Raises OSError, KeyError for another folder."""
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    verdict = summary["verdict"]
    words = summary["run"]["argv"][1:]
    if "--output" in words:
        at = words.index("--output")
        del words[at : at + 2]
    # What is a path of one machine says nothing to another.
    words = [Path(word).name if word.startswith("/") else word for word in words]
    return {
        "label": label,
        "server": verdict["label"],
        "command": " ".join(["fidelity", *words]),
        "fidelity": summary["run"]["version"],
        "started": verdict["started"],
        "state": verdict["state"],
        "exit_code": verdict["exit_code"],
        "reason": verdict["reason"],
        "not_exercised": verdict["not_exercised"],
        "arms": [
            {
                "name": arm["name"],
                "state": arm["state"],
                "requests": arm["requests"],
                "failed_requests": arm["failed_requests"],
                "seconds": round(arm["seconds"], 1),
                "cells": [{key: cell[key] for key in CELL_KEYS} for cell in arm["cells"]],
            }
            for arm in verdict["arms"]
        ],
        "comparisons": verdict["comparisons"],
    }


def markdown(found: dict[str, Any]) -> str:
    lines = [f"# {found['label']}", "", f"{found['server']}; started {found['started']}.", ""]
    lines += ["", f"    {found['command']}", "", f"**{found['state']}** (exit {found['exit_code']})", ""]
    for arm in found["arms"]:
        lines += [f"## Arm {arm['name']}: {arm['state']}", ""]
        lines += [f"{arm['requests']} requests, {arm['failed_requests']} failed, {arm['seconds']} s.", ""]
        lines += ["| probe | cell | exercised | corrupt | state |", "|---|---|--:|--:|---|"]
        for cell in arm["cells"]:
            counts = f"{cell['exercised']}/{cell['prompts']} | {cell['corrupt']}"
            lines.append(f"| {cell['probe']} | {cell['name']} | {counts} | {cell['state']} |")
        lines.append("")
        for cell in arm["cells"]:
            readings = "; ".join(
                f"{one['name']} {float(one['value']):.4g} {one['unit']}" for one in cell["readings"][:8]
            )
            if readings and cell["probe"] in ("decode", "draft", "tasks", "speed", "equivalence"):
                lines.append(f"- {cell['probe']} {cell['name']}: {readings}")
            lines += [f"- {note}" for note in cell["notes"] if cell["probe"] == "sweep"]
        lines.append("")
    for one in found["comparisons"]:
        lines += [f"## {one['probe']}, {one['name']}: {one['state']}", "", one["reason"], ""]
    lines += ["## Not exercised", "", *(f"- {item}" for item in found["not_exercised"]), ""]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("name")
    parser.add_argument("label")
    given = parser.parse_args()
    found = summarise(given.run, given.label)
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / f"{given.name}.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    (given.out / f"{given.name}.md").write_text(markdown(found), encoding="utf-8")


if __name__ == "__main__":
    main()
