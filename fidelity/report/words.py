"""How values are put in words, the same in every output. ASCII only, so that any terminal can show it."""

import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath

from fidelity.compare import Agreement
from fidelity.verdicts import CellVerdict, Compared, Reading, RunVerdict

AGREEMENT_ORDER = ("same", "near-tie", "hard flip", "off-list", "broken", "unreadable")


def readable(text: str, limit: int | None = None) -> str:
    """`text` on one line with everything unprintable escaped, cut to `limit` characters.

    What a broken server says may hold control characters, escape codes and lone surrogates: none of them may
    reach a terminal or an XML file.
    """
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    if limit is not None and len(shown) > limit:
        return shown[: limit - 3] + "..."
    return shown


def quoted(text: str, limit: int = 60) -> str:
    """`readable` in double quotes; `(nothing)` when empty."""
    return f'"{readable(text, limit)}"' if text else "(nothing)"


def nats(value: float) -> str:
    """Three significant digits; small values in short scientific notation: 0, 0.612, 2e-5, inf, nan."""
    if math.isfinite(value) and 0 < abs(value) < 1e-3:
        digits, exponent = f"{value:.0e}".split("e")
        return f"{digits}e{int(exponent)}"
    return f"{value:.3g}"


def brief_nats(value: float) -> str:
    """For a narrow column: two decimals, or one digit in scientific notation; `~0` is under 1e-6, not 0."""
    if not math.isfinite(value) or value == 0:
        return f"{value:g}"
    if abs(value) < 1e-6:
        return "~0"
    if abs(value) < 0.01:
        digits, exponent = f"{value:.0e}".split("e")
        return f"{digits}e{int(exponent)}"
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}"


def share(count: int, total: int) -> str:
    return f"{count}/{total}"


def rate_limit(cell: CellVerdict) -> str:
    """The one-sided limits of the corrupt-prompt rate that say something: `<=9.6%`, `>=90%`, `2.7..24%`.

    Rounded outwards, to 0.1 % under 10 % and to 1 % above.
    """
    if not cell.exercised or not (cell.corrupt or cell.rate_upper < 1):
        return "-"
    low, high = _outwards(cell.rate_lower, math.floor), _outwards(cell.rate_upper, math.ceil)
    if cell.corrupt == 0:
        return f"<={high}%"
    if cell.corrupt == cell.exercised:
        return f">={low}%"
    return f"{low}..{high}%"


def agreeing(cell: CellVerdict) -> str:
    """Judged sends whose first token is the cold one's, of all judged sends; `-` where none took the path."""
    return share(cell.agreement.get("same", 0), cell.sends) if cell.exercised else "-"


def corrupt_prompts(cell: CellVerdict) -> str:
    """Corrupt prompts of those that took the path; `-` also for a cell that is not judged by such a rate."""
    judged = cell.exercised and (cell.corrupt or cell.rate_upper < 1)
    return share(cell.corrupt, cell.exercised) if judged else "-"


def not_numbers(cell: CellVerdict) -> str:
    """Logprobs that were no finite number, of those looked at."""
    return share(sum(cell.faces.values()), cell.values) if cell.values or cell.faces else "-"


def counted(counts: Mapping[str, int], order: Sequence[str] = ()) -> str:
    """`192 (60), 128 (2)`: each value with how often it was seen; `-` when there is none."""
    keys = [key for key in order if key in counts] + [key for key in counts if key not in order]
    return ", ".join(f"{readable(key)} ({counts[key]})" for key in keys) or "-"


def why(agreement: Agreement) -> str:
    """What makes a send corrupt."""
    if agreement.rules:
        return "; ".join(agreement.rules)
    least = "at least " if agreement.kind == "off-list" else ""
    return f"{agreement.kind}, regret {least}{nats(agreement.regret)} nat"


def reading(value: Reading) -> str:
    """`k3 score, mean 0.0016 nat`; with its interval where it has one."""
    interval = "" if value.low is None or value.high is None else f" [{nats(value.low)}, {nats(value.high)}]"
    whole = math.isfinite(value.value) and value.value == int(value.value) and abs(value.value) < 1e6
    number = f"{value.value:g}" if whole else nats(value.value)
    return f"{value.name} {number}{interval}{' ' + value.unit if value.unit else ''}"


def compared(row: Compared) -> list[str]:
    """One row of two arms: name, first, second, ratio with its interval, pairs."""
    unit = f", {row.unit}" if row.unit else ""
    interval = "-" if math.isnan(row.ratio) else f"{row.ratio:.3g} [{row.low:.3g}, {row.high:.3g}]"
    return [f"{row.name}{unit}", nats(row.first), nats(row.second), interval, str(row.n)]


def verdict_line(verdict: RunVerdict) -> str:
    """The run in one line: `FAIL (exit 10): arm none: ...`."""
    partial = f" [partial: {verdict.status}]" if verdict.partial else ""
    reason = " ".join(verdict.reason.split())
    return readable(f"{verdict.state.upper()} (exit {verdict.exit_code}){partial}: {reason}")


def all_warnings(verdict: RunVerdict) -> list[str]:
    """The run's warnings, and those of its arms that it does not repeat."""
    of_arms = [f"arm {arm.name}: {message}" for arm in verdict.arms for message in arm.warnings]
    return list(dict.fromkeys([*verdict.warnings, *of_arms]))


def command_line(argv: Sequence[str]) -> str:
    """The command that was run, without the path of the program; empty when it is not known."""
    if not argv:
        return ""
    arguments = argv[1:] if PurePath(argv[0]).stem in ("fidelity", "__main__") else argv
    return readable(shlex.join(["fidelity", *arguments]))


def _outwards(rate: float, rounded: Callable[[float], int]) -> str:
    steps = 10 if rate < 0.1 else 1
    # Nine decimals, lest a rate of exactly 0.29 come out as 28 %.
    return f"{rounded(round(rate * 100 * steps, 9)) / steps:g}"
