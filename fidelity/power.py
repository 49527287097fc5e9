"""Which true corruption rates a plan of n prompts passes and fails, and how surely.

Two forms of corruption, of each prompt by itself at a true rate r, so that x of n prompts are hit:

    broken   a NaN or another absolute rule: one prompt fails the run
    wrong    another first token. On a screened prompt (top probability 0.9) that moves the JSD by 0.1 nat and
             more, so one such prompt keeps the mean JSD from being shown within its margin: no pass
"""

from typing import Literal

import numpy as np
from scipy import optimize, stats

from fidelity.plan import Thresholds
from fidelity.stats.rates import bad_needed

Form = Literal["broken", "wrong"]

POWER = 0.95


def not_passed(n: int, rate: float) -> float:
    """Probability that at least one of n prompts is corrupt, so that the run does not pass."""
    return float(stats.binom.sf(0, n, rate))


def failed(n: int, rate: float, form: Form, limits: Thresholds, tests: int) -> float:
    """Probability that the run fails, over x ~ Binomial(n, rate).

    Of wrong first tokens, x prompts fail the run when their rate's lower limit is above `max_rate`, or when
    the sign-flip test does: only the patterns that keep all x signs reach the observed sum, so p is 2^-x
    times a uniform share (the other prompts' noise), against alpha / `tests`, the tests of the run that Holm
    corrects for: two for each suspect cell, by JSD and by move. Only one of the two is counted here, as they
    see the same noise: the other adds a little to what is promised.
    """
    if form == "broken":
        return not_passed(n, rate)
    enough = bad_needed(n, limits.max_rate, limits.confidence) or n + 1
    bad = np.arange(1, n + 1)
    by_shift = np.minimum(1.0, limits.alpha / max(tests, 1) * 2.0 ** np.minimum(bad, 64))
    fails = np.where(bad >= enough, 1.0, by_shift)
    return float((stats.binom.pmf(bad, n, rate) * fails).sum())


def smallest_failed(n: int, form: Form, limits: Thresholds, tests: int, power: float = POWER) -> float | None:
    """The smallest true rate that fails with probability `power`; None when n prompts never do."""
    if failed(n, 1.0, form, limits, tests) < power:
        return None
    return float(optimize.brentq(lambda rate: failed(n, rate, form, limits, tests) - power, 0.0, 1.0))
