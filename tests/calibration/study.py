"""How often the judge is wrong: simulated servers, judged as recorded runs are. Prints the table of
docs/statistics.md.

    python -m tests.calibration.study [--runs 2000] [--large-runs 200] [--seed 0] [--only TEXT]

Each row is so many runs of one server at n prompts, each run with its own random numbers. `promised` is what
`fidelity plan` says for that plan and true rate.
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from fidelity.judge import judge
from fidelity.manifest import ArmRecord, Manifest
from fidelity.memory import no_collection
from fidelity.plan import RunPlan, Thresholds
from fidelity.power import Form, failed, not_passed
from fidelity.stats.divergence import divergences
from fidelity.stats.topk import TopK
from fidelity.verdicts import FAIL, INCONCLUSIVE, PASS

from .simulate import FAR, NEAR, SUSPECT, Array, Corruption, Server, cells, distributions, observe

LARGE = 299
"""Prompts of the `gate` plan: one hit each, a rate of 1 % allowed; simulated with the nearer control only."""

THREADS = "(b) noise of the threads"
FORMS: dict[str, Form] = {"nan": "broken", "salad": "wrong"}


@dataclass(frozen=True)
class Row:
    """So many prompts on one server, by the default plan but for what is given here. `multiple` sizes a
    bias: see `bias_of`."""

    name: str
    server: Server
    prompts: int
    tails: tuple[int, ...] = (SUSPECT, NEAR, FAR)
    suspects: int = 1
    kappa: float = Thresholds().kappa
    multiple: float = 0.0


@dataclass(frozen=True)
class Outcome:
    """What `runs` runs of a row came to, as shares. `promised_pass` and `promised_fail` are None where the
    plan promises nothing."""

    row: Row
    runs: int
    passed: float
    failed: float
    inconclusive: float
    promised_pass: float | None
    promised_fail: float | None


def rows() -> list[Row]:
    """The whole study, in the order of the table."""
    threads = Server("threads")
    found = [
        Row("(a) zero noise", Server("zero"), 30),
        Row(THREADS, threads, 30),
        Row("(b2) quantised engine", Server("quantised"), 30),
        Row("(c) heavy tails", Server("heavy-tailed"), 30),
        Row(f"{THREADS}, tails 1 to 4 suspects", threads, 30, (1, 2, 3, 4, FAR), suspects=4),
        Row(THREADS, threads, 60),
        Row(f"{THREADS}, kappa 1", threads, 60, kappa=1.0),
        Row(THREADS, threads, LARGE),
    ]
    for form, name in (("nan", "(d) NaN"), ("salad", "(d) salad")):
        for prompts, rates in ((30, (1.0, 0.2, 0.05, 0.01)), (60, (0.2, 0.05)), (LARGE, (0.05, 0.01))):
            found += [Row(name, Server("threads", Corruption(form, rate)), prompts) for rate in rates]
    for multiple, rate, prompts in (
        (5, 1.0, 30), (3, 1.0, 30), (2, 1.0, 30), (1, 1.0, 30),
        (5, 0.2, 30), (5, 0.05, 30), (5, 0.01, 30),
        (5, 0.2, 60), (10, 0.2, 60), (20, 0.2, 60),
    ):  # fmt: skip
        biased = Server("threads", Corruption("bias", rate))
        found.append(Row(f"(d) bias, JSD {multiple} x floor", biased, prompts, multiple=multiple))
    found.append(replace(found[-3], name=f"{found[-3].name}, kappa 1", kappa=1.0))
    # A row's place is part of its seed: new rows go to the end.
    return [*found, Row(f"{THREADS}, kappa 1", threads, 30, kappa=1.0)]


def measure(row: Row, runs: int, seed: Sequence[int]) -> Outcome:
    """Simulate and judge a row."""
    gate, corruption = row.prompts == LARGE, row.server.corruption
    if corruption is not None and row.multiple:
        corruption = replace(corruption, nats=bias_of(row.multiple))
    server = replace(row.server, corruption=corruption)
    plan = RunPlan(probes=("resend",), thresholds=Thresholds(max_rate=0.01 if gate else 0.1, kappa=row.kappa))
    conditions = cells((SUSPECT, NEAR) if gate else row.tails, row.suspects)
    rng = np.random.default_rng(seed)
    states: Counter[str] = Counter()
    for number in range(runs):
        with no_collection():
            manifest = Manifest("simulated", "", plan.model_copy(update={"seed": number}), status="complete")
            manifest.arms["none"] = ArmRecord("none", 1, cells=conditions)
            records = observe(server, row.prompts, 1 if gate else 2, conditions, rng)
            states[judge(manifest, records).state] += 1
    promised_pass = promised_fail = None
    if corruption is not None and corruption.form in FORMS:
        form, rate = FORMS[corruption.form], corruption.rate
        promised_pass = 1 - not_passed(row.prompts, rate)
        promised_fail = failed(row.prompts, rate, form, plan.thresholds, tests=2 * row.suspects)
    passed, fails, open_ = (states[state] / runs for state in (PASS, FAIL, INCONCLUSIVE))
    return Outcome(row, runs, passed, fails, open_, promised_pass, promised_fail)


@cache
def bias_of(multiple: float) -> float:
    """Nats off the leading logit that make the median JSD of such hits `multiple` times the control floor,
    the mean JSD of clean hits, under the threads' noise."""
    server = Server("threads")
    floor = float(jsd(server).mean())
    low, high = 0.0, 4.0
    for _ in range(12):
        middle = (low + high) / 2
        biased = replace(server, corruption=Corruption("bias", 1.0, middle))
        low, high = (middle, high) if np.median(jsd(biased)) < multiple * floor else (low, middle)
    return high


def jsd(server: Server, prompts: int = 20_000) -> Array:
    """JSD of the first hit of each prompt's first cell from its cold answer, over all ids, in nats."""
    logprobs, _ = distributions(server, prompts, 1, 1, np.random.default_rng(0))
    ids = np.broadcast_to(np.arange(logprobs.shape[-1]), logprobs[:, 0, 0].shape)
    cold, hit = (TopK(ids, logprobs[:, 0, send]) for send in (0, 2))
    return divergences(cold, hit).jsd_lower


def lines(outcome: Outcome) -> Iterator[str]:
    """One row of the table."""
    row, corruption = outcome.row, outcome.row.server.corruption
    values = [
        row.name,
        "" if corruption is None else f"{corruption.rate:.0%}",
        f"{row.prompts}",
        f"{outcome.runs}",
        _share(outcome.passed),
        _share(outcome.promised_pass),
        _share(outcome.failed),
        _share(outcome.promised_fail),
        _share(outcome.inconclusive),
    ]
    yield f"| {' | '.join(values)} |"


HEADER = """\
| server | corrupt | n | runs | pass | promised | fail | promised | inconclusive |
|---|--:|--:|--:|--:|--:|--:|--:|--:|"""


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.2%}"


def main() -> None:
    """Run the study, each row printed when it is done."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--large-runs", type=int, default=200, help=f"runs of a row of {LARGE} prompts")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="rows whose name holds this")
    given = parser.parse_args()
    sys.stdout.write(HEADER + "\n")
    started = time.process_time()
    for number, row in enumerate(rows()):
        if given.only in row.name:
            runs = given.large_runs if row.prompts == LARGE else given.runs
            outcome = measure(row, runs, (given.seed, number))
            sys.stdout.write("\n".join(lines(outcome)) + "\n")
            sys.stdout.flush()
    sys.stderr.write(f"{(time.process_time() - started) / 60:.1f} minutes of one core\n")


if __name__ == "__main__":
    main()
