"""The table of `fidelity affected` as text, Markdown and JSON. ASCII only."""

import json

from fidelity.affected import CHECK, Row, Table, assumptions

HEADS = ("TP", "I/rank", "affected M", "split of K -> safe split", "suspect tails", "control tails")


def as_json(found: Table) -> str:
    return json.dumps(found.data(), indent=1) + "\n"


def as_text(found: Table) -> str:
    """Columns for a terminal."""
    cells = [HEADS, *(_cells(row) for row in found.rows)]
    widths = [max(len(line[at]) for line in cells) for at in range(len(HEADS))]
    lines = ["  ".join(word.ljust(width) for word, width in zip(line, widths, strict=True)) for line in cells]
    shown = [line.rstrip() for line in lines] if found.rows else []
    return "\n".join([*_head(found), "", *shown, *([""] if shown else []), *_foot(found, "  ")]) + "\n"


def as_markdown(found: Table) -> str:
    lines = [HEADS, ("---",) * len(HEADS), *(_cells(row) for row in found.rows)]
    shown = [f"| {' | '.join(line)} |" for line in lines] if found.rows else []
    title, *rest = _head(found)
    return "\n".join([f"### {title}", "", *rest, "", *shown, "", *_foot(found, "- ")]) + "\n"


def _head(found: Table) -> list[str]:
    model = found.model
    shared = f", shared expert {model.shared}" if model.shared else ""
    lines = [
        f"{model.model} on {found.gpu.name.upper()} ({found.gpu.arch}, {found.units} compute units)",
        f"K {model.hidden}, I {model.intermediate}, top-k {model.topk} of {model.experts} experts{shared} "
        f"({model.source})",
    ]
    if model.safe_because:
        lines.append(f"Not affected at any TP: {model.safe_because}.")
    return lines


def _cells(row: Row) -> tuple[str, ...]:
    return (
        str(row.tp),
        str(row.shape.intermediate),
        _affected(row),
        _splits(row),
        ", ".join(map(str, row.suspects)),
        ", ".join(map(str, row.controls)),
    )


def _affected(row: Row) -> str:
    if row.elsewhere:
        return "- (another kernel)"
    return "-" if not row.largest else "1" if row.largest == 1 else f"<= {row.largest}"


def _splits(row: Row) -> str:
    """`M 1: 8 -> 4`, for each batch that is split with one K tile a split."""
    said = [f"M {one.m}: {one.splits} -> {one.safe}" for one in row.splits if one.affected]
    return "; ".join(said) or "-"


def _foot(found: Table, bullet: str) -> list[str]:
    said = [f"TP {row.tp}: {row.elsewhere}" for row in found.rows if row.elsewhere]
    lines = [f"{bullet}{line}" for line in (*said, *(assumptions(found) if found.rows else ()))]
    return ["Assumed:", *lines, "", CHECK] if found.rows else []
