"""Time of one call, on a GPU as a graph replay: what the device does, without the time to launch it."""

import time
from collections.abc import Callable
from typing import Any

import torch

WARM_UP = 3
REPLAYS = 20


def cpu_microseconds(call: Callable[[], Any], repeats: int) -> list[float]:
    """Wall-clock time of `repeats` single calls, in microseconds."""
    call()
    samples = []
    for _ in range(repeats):
        before = time.perf_counter()
        call()
        samples.append((time.perf_counter() - before) * 1e6)
    return samples


def graph_microseconds(call: Callable[[], Any], repeats: int) -> list[float]:
    """`repeats` samples of the mean of `REPLAYS` replays of one captured call, in microseconds."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    for _ in range(REPLAYS):
        graph.replay()
    samples = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(REPLAYS):
            graph.replay()
        end.record()
        end.synchronize()
        samples.append(start.elapsed_time(end) * 1e3 / REPLAYS)
    return samples
