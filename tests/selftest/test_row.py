"""Rows of the mutation table: their specs, their plans, and which verdicts they take."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fidelity.refserver.faults import KINDS
from fidelity.selftest.catalogue import FAULTS, OUT_OF_REACH, ROWS
from fidelity.selftest.controls import CONTROLS
from fidelity.selftest.row import Row, failing
from fidelity.verdicts import FAIL, INCONCLUSIVE, PASS, ArmVerdict, CellVerdict, RunVerdict

from .detectors import DETECTORS

BY_NAME = {row.name: row for row in ROWS}


def verdict(state: str, reason: str = "", *cells: tuple[str, str, str], probe: str = "resend") -> RunVerdict:
    """A run of one arm; `cells` are (name, state, reason) of the probe, none of them where it is the
    screening."""
    made = tuple(
        CellVerdict(arm="none", probe=probe, name=name, kind="suspect", state=own, reason=why)
        for name, own, why in cells
        if probe != "screening"
    )
    arm: dict[str, Any] = {"name": "none", "guard": "none", "baseline": False, "server": "", "cells": made}
    arm |= {"warnings": (), "replaced": (), "unsure": False, "cold_right": 0, "cold_known": 0}
    arms = (ArmVerdict(state=state, reason=reason, requests=0, failed_requests=0, seconds=0.0, **arm),)
    run: dict[str, Any] = {"label": "", "target": "", "status": "complete", "partial": False, "error": None}
    return RunVerdict(state=state, exit_code=0, reason=reason, bound="", arms=arms, not_exercised=(), **run)


def test_every_kind_of_fault_is_in_the_table() -> None:
    told = {part.split(":")[0] for row in ROWS for part in row.fault.split(",")}
    assert set(KINDS) - told == set()
    assert len(BY_NAME) == len(ROWS)


def test_every_number_of_the_catalogue_is_run_or_out_of_reach() -> None:
    numbers = {number for row in ROWS for number in row.catalogue} | {number for number, *_ in OUT_OF_REACH}
    assert numbers == {f"F{number:02d}" for number in range(1, 29)}


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_row_has_a_plan(row: Row, quick: bool) -> None:
    plan = row.run_plan(3, 1.0, quick=quick)
    assert plan.seed == 3
    assert plan.target.kind == "embedded"
    assert plan.target.fault == row.spec(1.0, quick=quick)


def test_a_rate_goes_to_each_part_that_takes_one() -> None:
    assert BY_NAME["drift"].spec(0.5) == "drift:after=150:rate=0.5"
    assert BY_NAME["drift"].spec(0.5, quick=True) == "drift:after=40:rate=0.5"
    assert BY_NAME["zeroed-state under jitter"].spec(0.2) == "zeroed-state:rate=0.2,hit-jitter"
    assert BY_NAME["split-k"].spec(1) == "split-k"


def test_healthy_servers_take_no_rate() -> None:
    assert not any(row.takes_rate for row in CONTROLS)
    assert all(row.takes_rate for row in FAULTS)


def test_a_fault_must_fail_where_the_row_says() -> None:
    row = BY_NAME["nan-uniform"]
    assert row.holds(verdict(FAIL, "", ("L=193 tail=1", FAIL, "12 of 12: flat row in 24 sends")))
    assert not row.holds(verdict(FAIL, "", ("L=193 tail=1", FAIL, "12 of 12 corrupt")))
    elsewhere = verdict(FAIL, "", ("L=225 tail=33", FAIL, "flat row"))
    assert not row.holds(elsewhere)
    assert row.holds(elsewhere, 0.2)
    assert not row.holds(verdict(INCONCLUSIVE, "flat row", ("L=193 tail=1", INCONCLUSIVE, "flat row")))


def test_a_blind_pair_may_be_inconclusive_for_its_reason_only() -> None:
    row = BY_NAME["split-cold, split-k-extend"]
    said = (
        "L=193 tail=1: 3 of 12 known answers are wrong even cold at 193 tokens and right at 2 other lengths"
    )
    assert row.holds(verdict(FAIL, "", ("L=193 tail=1", FAIL, said)))
    assert row.holds(verdict(INCONCLUSIVE, said))
    assert not row.holds(verdict(INCONCLUSIVE, "nothing was measured"))
    assert not row.holds(verdict(PASS))


def test_a_vacuous_server_must_be_inconclusive_for_its_reason() -> None:
    row = BY_NAME["null-counts"]
    assert row.holds(verdict(INCONCLUSIVE, "the server reports no cached_tokens"))
    assert not row.holds(verdict(INCONCLUSIVE, "something else"))
    assert not row.holds(verdict(PASS))


def test_a_control_must_pass_not_only_not_fail() -> None:
    row = BY_NAME["healthy"]
    assert row.holds(verdict(PASS))
    assert not row.holds(verdict(INCONCLUSIVE))


def test_what_needs_a_reference_must_fail_by_it() -> None:
    row = BY_NAME["all-wrong"]
    cell = "L=193 cold against the reference"
    assert row.holds(verdict(FAIL, "", (cell, FAIL, "moved")))
    assert not row.holds(verdict(FAIL, "", ("L=193 tail=1", FAIL, "corrupt")))
    assert not row.holds(verdict(PASS))
    plan = row.run_plan(0, 1.0, quick=True, reference=Path("there"))
    assert (plan.reference, plan.target.fault) == ("there", "all-wrong")
    assert row.run_plan(0, 1.0, quick=True, healthy=True).target.fault == "none"


@pytest.mark.parametrize(
    ("name", "probes"),
    [("split-k", ("resend",)), ("drift", ("resend", "checkpoint")), ("swapped-row", ("batch",))],
)
def test_a_smaller_rate_is_run_by_the_probe_that_is_named(name: str, probes: tuple[str, ...]) -> None:
    assert BY_NAME[name].run_plan(0, 0.5, quick=False).selected == probes


def test_the_smaller_the_rate_the_more_prompts_at_the_suspect_tail() -> None:
    counts = [BY_NAME["zeroed-state"].run_plan(0, rate, quick=False).prompts.count for rate in (0.5, 0.1)]
    assert counts == [12, 60]
    own = BY_NAME["stale-conv"].run_plan(0, 0.1, quick=False)
    assert (own.prompts.count, own.resend.controls) == (30, (33,))
    assert own.thresholds.max_rate == 0.01


def test_it_is_caught_by_the_cell_that_the_row_names() -> None:
    cells = (("L=225 tail=33", FAIL, "x"), ("L=193 tail=1", FAIL, "y"))
    found = verdict(FAIL, "", *cells)
    assert BY_NAME["zeroed-state"].caught_by(found) == "resend L=193 tail=1"
    assert replace(BY_NAME["zeroed-state"], names="none such").caught_by(found) == "resend L=225 tail=33"
    assert BY_NAME["zeroed-state"].caught_by(verdict(PASS)) == ""


def test_a_failing_screening_has_no_cell() -> None:
    assert failing(verdict(FAIL, "cold answers are broken")) == [("screening", "cold answers are broken")]


@pytest.mark.parametrize("name", DETECTORS)
def test_a_row_stands_on_each_detector(name: str) -> None:
    """It takes what the judge says by the detector and nothing less; tests/selftest/test_detectors.py takes
    each out and judges the rows again."""
    _, row_name, cell, reason = DETECTORS[name]
    row = BY_NAME[row_name]
    if row.group == "vacuous":
        assert row.holds(verdict(INCONCLUSIVE, reason))
    else:
        assert row.holds(verdict(FAIL, reason, (cell.partition(" ")[2], FAIL, reason), probe=cell.split()[0]))
    assert not row.holds(verdict(PASS))
    assert not row.holds(verdict(INCONCLUSIVE, "too few prompts"))
    assert not row.holds(verdict(FAIL, "elsewhere", ("L=999 tail=9", FAIL, "corrupt")))
