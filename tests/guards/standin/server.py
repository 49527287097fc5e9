"""A server's process tree without a server: a launcher that spawns schedulers and a detokenizer.

Each scheduler runs stage 1 of the MoE at several batch sizes on a warm allocator and puts the largest error
of each into FOLDER/PID.json. usage: server.py FOLDER [--schedulers N] [--plugins sglang|entry-points]
"""

import argparse
import importlib.metadata
import json
import multiprocessing
import os
from pathlib import Path

EXPERTS, TOPK, INTERMEDIATE, HIDDEN = 4, 2, 8, 2048


def load_plugins(how: str) -> None:
    if how == "sglang":
        from sglang.srt.plugins import load_plugins

        load_plugins()
    elif how == "entry-points":
        for plugin in importlib.metadata.entry_points(group="sglang.srt.plugins"):
            plugin.load()()


def errors() -> dict[str, float]:
    """Largest error of stage 1 against a plain computation, by batch size, once its memory has been used."""
    import numpy as np
    from aiter import QuantType
    from aiter.fused_moe import fused_moe, silu_and_mul

    rng = np.random.default_rng(0)
    w1 = rng.normal(size=(EXPERTS, 2 * INTERMEDIATE, HIDDEN), scale=0.02).astype(np.float32)
    w2 = np.empty((EXPERTS, HIDDEN, INTERMEDIATE), np.float32)
    found = {}
    for rows in (1, 1, 2, 2, 4, 4):
        hidden = rng.normal(size=(rows, HIDDEN)).astype(np.float32)
        chosen = rng.integers(EXPERTS, size=(rows, TOPK))
        right = silu_and_mul(np.einsum("mk,mtnk->mtn", hidden, w1[chosen]))
        got = fused_moe(hidden, w1, w2, None, chosen, QuantType.per_128x128)
        found[str(rows)] = float(np.abs(got - right).max())
    return found


def run_scheduler_process(folder: Path, how: str) -> None:
    load_plugins(how)
    (folder / f"{os.getpid()}.json").write_text(json.dumps(errors()))


def run_detokenizer_process(how: str) -> None:
    load_plugins(how)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--schedulers", type=int, default=1)
    parser.add_argument("--plugins", default="none")
    parser.add_argument("--api-key", default="")
    options = parser.parse_args()
    load_plugins(options.plugins)
    multiprocessing.set_start_method("spawn")
    children = [
        multiprocessing.Process(target=run_scheduler_process, args=(options.folder, options.plugins))
        for _ in range(options.schedulers)
    ]
    children.append(multiprocessing.Process(target=run_detokenizer_process, args=(options.plugins,)))
    for child in children:
        child.start()
    for child in children:
        child.join()
    raise SystemExit(max(child.exitcode or 0 for child in children))


if __name__ == "__main__":
    main()
