"""What no judge of JSDs can do: the error rates of the best test there is, under the threads' noise.

    python -m tests.calibration.best_test [--multiple 5] [--rate 0.2] [--prompts 60]

The likelihood-ratio test of one JSD per prompt, which knows exactly how those of healthy and of biased hits
are distributed, is the most powerful one (Neyman & Pearson 1933): at the same share of healthy runs passed,
no test of these JSDs passes fewer broken runs. A real one has to learn the distribution from its controls.
"""

import argparse
import sys

import numpy as np

from .simulate import Array, Corruption, Server
from .study import bias_of, jsd

PROMPTS_KNOWN = 40_000
RUNS = 20_000
BINS = 80


def false_pass(multiple: float, rate: float, prompts: int, healthy_pass: float = 0.95) -> float:
    """Share of broken runs (a bias of `multiple` times the floor in `rate` of the prompts) that the best test
    passes when it passes `healthy_pass` of the healthy ones."""
    rng = np.random.default_rng(0)
    healthy = np.log(jsd(Server("threads"), PROMPTS_KNOWN))
    biased = np.log(jsd(Server("threads", Corruption("bias", 1.0, bias_of(multiple))), PROMPTS_KNOWN))
    edges = np.quantile(np.concatenate([healthy, biased]), np.linspace(0, 1, BINS + 1))[1:-1]
    of_healthy, of_biased = _histogram(healthy, edges), _histogram(biased, edges)
    ratio = np.log(1 - rate + rate * of_biased / of_healthy)

    def statistic(values: Array) -> Array:
        found: Array = ratio[np.searchsorted(edges, values)].sum(axis=1)
        return found

    shape = (RUNS, prompts)
    clean = rng.choice(healthy, shape)
    broken = np.where(rng.random(shape) < rate, rng.choice(biased, shape), rng.choice(healthy, shape))
    limit = np.quantile(statistic(clean), healthy_pass)
    return float((statistic(broken) <= limit).mean())


def _histogram(values: Array, edges: Array) -> Array:
    counts = np.bincount(np.searchsorted(edges, values), minlength=len(edges) + 1)
    shares: Array = (counts + 0.5) / (counts.sum() + 0.5 * len(counts))
    return shares


def main() -> None:
    """Print the best test's share of false passes."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--multiple", type=float, default=5)
    parser.add_argument("--rate", type=float, default=0.2)
    parser.add_argument("--prompts", type=int, default=60)
    given = parser.parse_args()
    share = false_pass(given.multiple, given.rate, given.prompts)
    sys.stdout.write(f"passing 95% of healthy runs, the best test passes {share:.2%} of the broken ones\n")


if __name__ == "__main__":
    main()
