"""Keep the result of a real-sglang test as two small files: NAME.json and NAME.md, marked for what they are.

usage: record.py RUN OUT      RUN: the folder of one `check` of test_real_sglang.py; OUT: say, docs/runs
"""

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

CELL_KEYS = (
    *("name", "kind", "state", "reason", "prompts", "exercised", "corrupt", "sends", "corrupt_sends"),
    *("agreement", "rules", "faces", "values", "tails", "cached", "divergences"),
)
HEALTH_PROBE = [1, 1, 0]
FRANCE = "capital/france@193"
MODELS = {
    "quiz": "the embedded engine's trained weights, exported with `fidelity serve --export`",
    "random": "a tiny random Qwen3-Next, tests/sglang/make_model.py",
}


def summarise(run: Path) -> dict[str, Any]:
    """What one run showed, without single answers. Raises OSError, KeyError for another folder."""
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    server = json.loads((run / "server.json").read_text(encoding="utf-8"))
    verdict, fault = summary["verdict"], server["fault"]
    (arm,) = verdict["arms"]
    prefills = Counter(tuple(prefill) for prefill in server["prefills"])
    words = summary["run"]["argv"][1:]
    if "--output" in words:
        at = words.index("--output")
        del words[at : at + 2]
    return {
        "label": "healthy, CPU" if fault == "off" else "injected fault, CPU",
        "fault": "none" if fault == "off" else f"{fault}, in every MoE layer when it computes 1 token",
        "model": MODELS[server["model"]],
        "weights_sha256": server["weights_sha256"],
        "sglang_flags": server["flags"],
        "command": " ".join(["fidelity", *words]),
        "versions": {
            **{name: server[name] for name in ("sglang", "torch", "transformers")},
            "fidelity": summary["run"]["version"],
            "python": summary["run"]["python"],
        },
        "started": verdict["started"],
        "state": verdict["state"],
        "exit_code": verdict["exit_code"],
        "reason": verdict["reason"],
        "requests": arm["requests"],
        "failed_requests": arm["failed_requests"],
        "seconds": round(arm["seconds"], 1),
        "unsure_model": arm["unsure"],
        "cold_right": [arm["cold_right"], arm["cold_known"]],
        "cells": [{key: cell[key] for key in CELL_KEYS} for cell in arm["cells"]],
        "examples": [example for cell in arm["cells"] for example in cell["examples"]][:3],
        "france": answers_about_france(run),
        "log_agrees": log_agrees(run, server["prefills"]),
        "server_log": [
            {"new_seq": key[0], "new_token": key[1], "cached_token": key[2], "lines": count}
            for key, count in sorted(prefills.items())
        ],
    }


def observations(run: Path) -> list[dict[str, Any]]:
    """The recorded requests, in the order they were sent."""
    lines = (run / "observations.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def answers_about_france(run: Path) -> list[str]:
    """What one prompt was answered, send by send; on the quiz weights it is the first thread's own."""
    return [
        f"{one['role']}, {one['answer']['cached_tokens']} cached: {one['answer']['text']!r}"
        for one in observations(run)
        if one["group"] == FRANCE
    ]


def log_agrees(run: Path, prefills: list[list[int]]) -> bool:
    """Does each recorded answer, in order, claim the tokens that the server's log shows for it?"""
    answers = [one["answer"] for one in observations(run)]
    claimed = [[1, one["prompt_tokens"] - one["cached_tokens"], one["cached_tokens"]] for one in answers]
    return [prefill for prefill in prefills if prefill != HEALTH_PROBE] == claimed


def markdown(name: str, data: dict[str, Any]) -> str:
    """The same for a reader."""
    lines = [
        f"# {name}: exit {data['exit_code']}, {data['state']}",
        "",
        f"**{data['label']}**: a real sglang server, not a GPU. Fault: {data['fault']}.",
        "",
        f"- model: {data['model']}; weights sha256 {data['weights_sha256'][:12]}",
        f"- server flags beside those of serve.sh: {data['sglang_flags'] or 'none'}",
        "- versions: " + ", ".join(f"{key} {value}" for key, value in data["versions"].items()),
        f"- command: `{data['command']}`",
        f"- started {data['started']}, {data['requests']} requests, {data['failed_requests']} failed, "
        f"{data['seconds']} s",
        f"- {data['reason']}",
        f"- cold answers right: {data['cold_right'][0]}/{data['cold_right'][1]}; unsure model: "
        f"{'yes' if data['unsure_model'] else 'no'}",
        "",
        "| cell | kind | on the path | corrupt | same first token | KL >=, median | NaN/logprobs | state |",
        "|---|---|--:|--:|--:|--:|--:|---|",
    ]
    for cell in data["cells"]:
        same, far = cell["agreement"].get("same", 0), cell["divergences"]
        lines.append(
            f"| {cell['name']} | {cell['kind']} | {cell['exercised']}/{cell['prompts']} | {cell['corrupt']} "
            f"| {same}/{cell['sends']} | {_nats(far['kl_lower']['median']) if far else '-'} "
            f"| {sum(cell['faces'].values())}/{cell['values']} | {cell['state']} |"
        )
    if data["france"]:
        lines += ["", "The prompt about France at 193 tokens, in the order sent:", ""]
        lines += [f"- {line}" for line in data["france"]]
    if data["examples"]:
        why = "decode computes one token at a time, so cold answers spoil after their first token"
        lines += ["", f"Corrupt hits ({why}):", ""]
    lines += [
        f"- {one['prompt']} (expected {one['expected']!r}): {one['why']}; "
        f"cold `{one['cold']!r}`, hit `{one['other']!r}`"
        for one in data["examples"]
    ]
    agree = "they agree" if data["log_agrees"] else "they DISAGREE"
    lines += [
        "",
        f"Tails computed from the answers against the server's own log, request by request: {agree}. Its "
        "`Prefill batch` lines:",
        "",
    ]
    lines += [
        f"- {one['lines']} x `#new-seq: {one['new_seq']}, #new-token: {one['new_token']}, "
        f"#cached-token: {one['cached_token']}`"
        for one in data["server_log"]
    ]
    return "\n".join(lines) + "\n"


def _nats(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.3g}"


def main() -> None:
    """Read the command line, write both files."""
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path)
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    data = summarise(given.run)
    server = json.loads((given.run / "server.json").read_text(encoding="utf-8"))
    fault = "healthy" if server["fault"] == "off" else server["fault"]
    name = f"sglang-{server['sglang']}-cpu-{server['model']}-{fault}"
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / f"{name}.json").write_text(
        json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    (given.out / f"{name}.md").write_text(markdown(name, data), encoding="utf-8")


if __name__ == "__main__":
    main()
