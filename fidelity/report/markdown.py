"""report.md: the run for people, from templates/report.md.j2."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from fidelity.manifest import ArmRecord, Manifest
from fidelity.report import cells, words
from fidelity.report.cells import Scripts
from fidelity.report.files import write_text
from fidelity.verdicts import CellVerdict, Figure, RunVerdict, Spread

_TEMPLATES = Path(__file__).parent / "templates"
_FACTS = (
    "grid",
    "page_size",
    "strategy",
    "prefix_cache",
    "tp",
    "dp",
    "vocab_size",
    "guards",
    "fault",
    "fault_region",
    "simulated",
)
_TEXT_LIMIT = 200


def write_markdown(
    path: Path, verdict: RunVerdict, manifest: Manifest, scripts: Scripts | None = None
) -> None:
    """Raises ResultsError when it cannot be written."""
    write_text(path, render(verdict, manifest, scripts))


def render(verdict: RunVerdict, manifest: Manifest, scripts: Scripts | None = None) -> str:
    """The text of report.md. Of each arm the first of `scripts` is told."""
    text: str = _template().render(
        verdict=verdict,
        manifest=manifest,
        line=words.verdict_line(verdict),
        warnings=words.all_warnings(verdict),
        rows=cells.side_by_side(verdict),
        scripts=cells.first_scripts(verdict, scripts or {}),
        cell_row=_cell_row,
        other_row=_other_row,
        reading=words.reading,
        compared=words.compared,
        brief=_brief,
        facts=_facts,
        thresholds=list(_thresholds(verdict, manifest)),
        figures=list(_figures(verdict)),
        command=words.command_line(manifest.argv),
        counted=words.counted,
        agreement_order=words.AGREEMENT_ORDER,
        nats=words.nats,
    )
    return text


@cache
def _template() -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters |= {"plain": plain, "code": code}
    return environment.get_template("report.md.j2")


def plain(text: object) -> str:
    """Text that Markdown shows as it is, in a table cell too."""
    shown = re.sub(r"([\\`*|])", r"\\\1", words.readable(str(text)))
    return re.sub(r"<(?=[A-Za-z/!?])", r"\\<", shown)


def code(text: str) -> str:
    """A code span around any text, whatever backticks it holds."""
    if not text:
        return "(nothing)"
    shown = words.readable(text, _TEXT_LIMIT)
    fence = "`" * (max(map(len, re.findall("`+", shown)), default=0) + 1)
    pad = " " if shown[0] in "` " or shown[-1] in "` " else ""
    return f"{fence}{pad}{shown}{pad}{fence}"


def _cell_row(cell: CellVerdict) -> list[str]:
    """One cell of the per-arm table, in the order of its header in the template."""
    kl = jsd = covered = "-"
    if cell.divergences is not None:
        kl = _median_and_max(cell.divergences.kl_lower)
        low, high = cell.divergences.jsd_lower, cell.divergences.jsd_upper
        jsd = f"{_interval(low.median, high.median)} / {_interval(low.maximum, high.maximum)}"
        covered = f"{cell.divergences.p_covered:.4f}, {cell.divergences.q_covered:.4f}"
    row = [
        cell.name,
        cell.kind,
        words.share(cell.exercised, cell.prompts),
        words.corrupt_prompts(cell),
        words.agreeing(cell),
        words.rate_limit(cell),
        kl,
        covered,
        jsd,
        words.not_numbers(cell),
        words.counted(cell.tails),
        words.counted(cell.cached),
        cell.state,
    ]
    return [plain(value) for value in row]


def _other_row(cell: CellVerdict) -> list[str]:
    """One cell of another probe than resend, in the order of its header in the template."""
    row = [
        cell.probe,
        cell.name,
        cell.kind or "-",
        words.share(cell.exercised, cell.prompts),
        words.corrupt_prompts(cell),
        words.rate_limit(cell),
        words.not_numbers(cell),
        cell.state,
    ]
    return [plain(value) for value in row]


def _median_and_max(spread: Spread) -> str:
    nonfinite = f" ({spread.nonfinite} of {spread.n} not finite)" if spread.nonfinite else ""
    return f"{words.nats(spread.median)} / {words.nats(spread.maximum)}{nonfinite}"


def _interval(low: float, high: float) -> str:
    return f"{words.nats(low)}..{words.nats(high)}"


def _brief(cell: CellVerdict | None) -> list[str]:
    """One cell of the before/after table: agreement, corrupt prompts, KL, state."""
    if cell is None:
        return ["-", "-", "-", "-"]
    kl = words.nats(cell.divergences.kl_lower.median) if cell.divergences else "-"
    return [words.agreeing(cell), words.corrupt_prompts(cell), kl, plain(cell.state)]


def _facts(record: ArmRecord | None) -> str:
    if record is None or not record.facts:
        return ""
    known = {key: record.facts[key] for key in _FACTS if record.facts.get(key) not in (None, "", (), [])}
    return ", ".join(f"{key} {_listed(value)}" for key, value in known.items())


def _listed(value: Any) -> str:
    return "+".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _thresholds(verdict: RunVerdict, manifest: Manifest) -> Iterator[tuple[str, float, str]]:
    fields = type(manifest.plan.thresholds).model_fields
    for name, value in verdict.thresholds.items():
        own = getattr(manifest.plan.thresholds, name, value)
        is_default = name in fields and fields[name].default == value
        source = "default" if is_default else f"plan '{manifest.plan.name}'"
        yield name, value, source if value == own else "chosen after the run"


def _figures(verdict: RunVerdict) -> Iterator[tuple[str, str, Figure]]:
    for arm in verdict.arms:
        for cell in arm.cells:
            for figure in cell.figures:
                yield cell.arm, f"{'' if cell.probe == 'resend' else cell.probe + ' '}{cell.name}", figure
    for one in verdict.comparisons:
        for figure in one.figures:
            yield " against ".join(reversed(one.arms)), f"{one.probe} {one.name}", figure
