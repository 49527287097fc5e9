"""What `--fault` takes, and what it says to the rest."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from fidelity.refserver.faults import KINDS, Fault, parse
from fidelity.refserver.settings import Settings


def test_none_is_no_fault() -> None:
    assert parse("none") == ()


def test_faults_combine_and_fill_in_their_keys() -> None:
    swapped, drift = parse("swapped-row:rate=0.2, drift:after=7")
    assert (swapped.name, swapped["rate"]) == ("swapped-row", 0.2)
    assert (drift.name, drift["rate"], drift["after"]) == ("drift", 1.0, 7.0)


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_stands_by_its_name(name: str) -> None:
    (fault,) = parse(name)
    assert fault.name == name
    assert set(dict(fault.values)) == set(KINDS[name].keys)
    assert Settings(fault=name).fault == name


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("nope", "swapped-row.*got 'nope'"),
        ("", "one of none, split-k"),
        ("none,drift", "'none' \\(none stands alone\\)"),
        ("drift:foo=1", "keys rate, after, got 'foo=1'"),
        ("drift:after", "got 'after'"),
        ("never-hits:rate=1", "keys none, got 'rate=1'"),
        ("drift:after=x", "after must be a whole number from 1 to 1e\\+06, got 'x'"),
        ("drift:after=1.5", "got '1.5'"),
        ("drift:rate=1.01", "rate must be a number from 0 to 1, got '1.01'"),
        ("drift:rate=nan", "got 'nan'"),
        ("kv-scale:scale=inf", "got 'inf'"),
        ("drift,drift", "'drift' is given twice"),
        ("split-k,split-k-nan", "exclude each other"),
        ("nan-null,nan-500", "exclude each other"),
    ],
)
def test_what_is_refused(spec: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse(spec)
    with pytest.raises(ValueError, match=said):
        Settings(fault=spec)


def test_a_rate_picks_the_same_subjects_for_a_seed_and_about_its_share() -> None:
    fault = Fault("drift", (("rate", 0.2),))
    subjects = [str(n).encode() for n in range(2000)]
    picked = [fault.picks(3, subject) for subject in subjects]
    assert picked == [fault.picks(3, subject) for subject in subjects]
    assert 340 < sum(picked) < 460  # five standard deviations are 90
    assert picked != [fault.picks(4, subject) for subject in subjects]
    assert picked != [Fault("other", (("rate", 0.2),)).picks(3, subject) for subject in subjects]


@pytest.mark.parametrize(("rate", "expected"), [(0.0, False), (1.0, True)])
def test_the_ends_of_a_rate(rate: float, expected: bool) -> None:
    assert all(Fault("x", (("rate", rate),)).picks(0, bytes([n])) is expected for n in range(200))


def test_the_documentation_lists_every_fault_with_its_keys() -> None:
    page = (Path(__file__).parents[3] / "docs/embedded-engine.md").read_text(encoding="utf-8")
    table = page.partition("## All faults")[2].partition("Measured over")[0]
    listed = {}
    for line in table.splitlines():
        if line.startswith("| `"):
            names, keys = line.split("|")[1:3]
            listed |= {name: set(re.findall(r"`(\w+)`", keys)) for name in re.findall("`(.*?)`", names)}
    assert listed == {name: set(kind.keys) for name, kind in KINDS.items()}


def test_parsing_needs_no_numpy() -> None:
    code = "import sys, fidelity.refserver.faults as f; f.parse('drift'); sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
