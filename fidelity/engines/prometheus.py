"""Figures out of a `/metrics` page in the Prometheus text format."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import httpx

_LINE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)")
_LABEL = re.compile(r'([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True)
class Sample:
    """One line: a series and its value now."""

    name: str
    labels: Mapping[str, str]
    value: float


def scrape(client: httpx.Client) -> list[Sample]:
    """What `/metrics`, which computes nothing, tells now; empty where there is no such page."""
    try:
        response = client.get("/metrics", timeout=10)
    except httpx.TransportError:
        return []
    return list(parse(response.text)) if response.status_code == 200 else []


def parse(text: str) -> Iterator[Sample]:
    """The samples of a page; lines of another format are passed over."""
    for line in text.splitlines():
        found = _LINE.match(line)
        if found is None:
            continue
        try:
            value = float(found[3])
        except ValueError:
            continue
        labels = {name: told.replace('\\"', '"') for name, told in _LABEL.findall(found[2] or "")}
        yield Sample(found[1], labels, value)


def total(samples: list[Sample], name: str, **labels: str) -> float | None:
    """The sum over all series of a name with these labels; None without any."""
    values = [one.value for one in samples if one.name == name and labels.items() <= one.labels.items()]
    return sum(values) if values else None
