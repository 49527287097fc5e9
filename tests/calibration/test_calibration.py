"""The calibration study on few runs: the simulated noise is what it says, and the table still comes."""

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fidelity.stats.divergence import Divergences, divergences
from fidelity.stats.topk import TopK

from .best_test import false_pass
from .simulate import Array, Corruption, Server, cells, distributions, observe
from .study import Row, bias_of, jsd, lines, measure

ROOT = Path(__file__).resolve().parents[2]
PROMPTS = 20_000


def against_cold(server: Server, send: int) -> tuple[Divergences, Array]:
    """Divergences of the n-th send from the first, and the regret of its first id, 0 where it is the same."""
    logprobs, _ = distributions(server, PROMPTS, 1, 1, np.random.default_rng(1))
    cold, other = logprobs[:, 0, 0], logprobs[:, 0, send]
    ids = np.broadcast_to(np.arange(cold.shape[-1]), cold.shape)
    chosen = other.argmax(axis=-1)
    regret = cold.max(axis=-1) - np.take_along_axis(cold, chosen[:, None], axis=-1)[:, 0]
    return divergences(TopK(ids, cold), TopK(ids, other)), regret


def test_the_threads_noise_is_that_of_the_threads() -> None:
    hits, regret = against_cold(Server("threads"), 2)
    floor, _ = against_cold(Server("threads"), 1)
    assert hits.kl_lower.mean() == pytest.approx(5e-3, rel=0.1)
    assert floor.kl_lower.mean() == pytest.approx(6e-4, rel=0.2)
    flips = regret > 0
    assert 0.003 < flips.mean() < 0.013
    assert (regret[flips] > 0.1251).mean() < 0.05  # near-ties, but for a rare jump over a clear gap


def test_the_quantised_engine_is_as_measured() -> None:
    hits, _ = against_cold(Server("quantised"), 2)
    floor, _ = against_cold(Server("quantised"), 1)
    assert 1e-5 < np.quantile(hits.kl_lower, 0.05) < np.quantile(hits.kl_lower, 0.95) < 2.5e-3
    assert np.quantile(floor.kl_lower, 0.97) == 0.0  # ties apart, cold and cold are one


def test_zero_noise_is_zero() -> None:
    for send in (1, 2):
        found, regret = against_cold(Server("zero"), send)
        assert found.kl_lower.max() == found.jsd_lower.max() == regret.max() == 0.0


def test_heavy_tails_jump_20_nat() -> None:
    logprobs, _ = distributions(Server("heavy-tailed"), 2_000, 1, 1, np.random.default_rng(0))
    moved = np.abs(logprobs[:, 0, 2] - logprobs[:, 0, 0])
    assert 18 < moved.max() < 24
    assert 2e-4 < (moved > 10).mean() < 3e-3


def test_a_bias_has_the_size_that_it_says() -> None:
    floor = jsd(Server("threads")).mean()
    biased = jsd(Server("threads", Corruption("bias", 1.0, bias_of(5))))
    assert np.median(biased) == pytest.approx(5 * floor, rel=0.02)


def test_a_corruption_hits_its_share_of_prompts_and_nothing_else() -> None:
    records = observe(Server("threads", Corruption("nan", 0.2)), 400, 2, cells(), np.random.default_rng(0))
    corrupt = {(one.prompt, one.cell, one.role) for one in records if one.answer.faces}
    assert {cell for _, cell, _ in corrupt} == {cells()[0].name}
    assert {role for *_, role in corrupt} == {"hit"}
    assert len({prompt for prompt, *_ in corrupt}) == pytest.approx(80, abs=25)


@pytest.mark.parametrize("noise", ["zero", "threads", "quantised", "heavy-tailed"])
def test_no_healthy_server_fails(noise: str) -> None:
    outcome = measure(Row(noise, Server(noise), 30), 15, (0,))
    assert outcome.failed == 0
    if noise != "heavy-tailed":
        assert outcome.passed >= 0.8


@pytest.mark.parametrize(
    ("form", "rate", "prompts"),
    [("nan", 1.0, 30), ("salad", 1.0, 30), ("bias", 1.0, 30), ("nan", 0.2, 60), ("salad", 0.2, 60)],
)
def test_no_broken_server_passes(form: str, rate: float, prompts: int) -> None:
    corruption = Corruption(form, rate, bias_of(5) if form == "bias" else 0.0)
    outcome = measure(Row(form, Server("threads", corruption), prompts), 10, (0,))
    assert outcome.passed == 0
    if form == "nan" or rate == 1.0:
        assert outcome.failed == 1.0


@pytest.mark.parametrize("form", ["nan", "salad"])
def test_the_plan_keeps_its_promise(form: str) -> None:
    runs = 60
    outcome = measure(Row(form, Server("threads", Corruption(form, 0.05)), 30), runs, (0,))
    for share, promised in (
        (outcome.passed, outcome.promised_pass),
        (outcome.failed, outcome.promised_fail),
    ):
        assert promised is not None
        error = math.sqrt(promised * (1 - promised) / runs)
        assert abs(share - promised) <= 3.5 * error + 0.02  # 2 %: a healthy run may be inconclusive


def test_no_test_of_jsds_meets_what_it_cannot() -> None:
    """A fifth of 60 prompts at 5 times the floor: the best test there is passes some."""
    assert 0.005 < false_pass(5, 0.2, 60) < 0.03


def test_the_script_prints_its_table() -> None:
    words = ["-m", "tests.calibration.study", "--runs", "2", "--only", "(a)"]
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=True)
    *_, row = done.stdout.splitlines()
    assert row == "| (a) zero noise |  | 30 | 2 | 100.00% |  | 0.00% |  | 0.00% |"
    assert "minutes of one core" in done.stderr


def test_a_row_of_the_table() -> None:
    (line,) = lines(measure(Row("NaN", Server("zero", Corruption("nan", 1.0)), 30), 2, (0,)))
    assert line == "| NaN | 100% | 30 | 2 | 0.00% | 0.00% | 100.00% | 100.00% | 0.00% |"
