import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fidelity.errors import ResultsError
from fidelity.observations import (
    Answer,
    Observation,
    Recorder,
    cut_torn_line,
    frame,
    from_json,
    read,
    to_json,
)

finite = st.floats(allow_nan=False, allow_infinity=False)
logprob = st.floats() | st.sampled_from([math.nan, math.inf, -math.inf, -3.4028235e38, -9999.0, -0.0])
token = st.integers(0, 2**31 - 1)
row = st.lists(st.tuples(token, logprob), max_size=3)
words = st.text('an-"\n\\\ud800\u2028é\x00', max_size=6) | st.sampled_from(["nan", "-inf"])
count = st.none() | st.integers(0, 10**6)
answers = st.builds(
    Answer,
    status=st.integers(0, 599),
    latency=finite,
    error=st.none() | words,
    text=st.none() | words,
    output_ids=st.lists(token, max_size=3),
    prompt_tokens=count,
    cached_tokens=count,
    finish_reason=st.none() | words,
    logprobs=st.lists(logprob, max_size=3),
    top=st.lists(row, max_size=2),
    asked=st.lists(row, max_size=2),
    faces=st.dictionaries(words, st.integers(0, 99), max_size=2),
    values=st.integers(0, 99),
    dp_rank=count,
    raw=st.none() | words,
)
observations = st.builds(
    Observation,
    order=st.integers(0, 10**6),
    arm=words,
    probe=words,
    role=words,
    namespace=words,
    length=st.integers(0, 10**6),
    sent_at=finite,
    answer=answers,
    cell=words,
    kind=words,
    tail=count,
    prompt=words,
    group=words,
    attempt=st.integers(0, 9),
    send=st.integers(1, 9),
    expected_cached=count,
    expected_text=words,
    input_ids=st.lists(token, max_size=3),
    max_new_tokens=st.integers(0, 99),
)


def _comparable(value: Any) -> Any:
    """repr tells NaN from nothing, -0.0 from 0.0 and a tuple from a list."""
    return repr(value)


@given(observations)
@settings(max_examples=60)
def test_round_trip_with_nan_and_infinities(observation: Observation) -> None:
    line = to_json(observation)
    assert "\n" not in line
    assert _comparable(from_json(line)) == _comparable(observation)


@given(observations)
@settings(max_examples=40)
def test_the_line_is_strict_json(observation: Observation) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    assert json.loads(to_json(observation), parse_constant=refuse)["schema"] == 1


@pytest.fixture
def three(observation: Any, tmp_path: Path) -> tuple[Path, list[Observation]]:
    path = tmp_path / "observations.jsonl"
    made = [observation(order=n, top=[[(5, -0.1 * n), (6, math.nan)]]) for n in range(3)]
    recorder = Recorder(path)
    for one in made:
        recorder.add(one)
    recorder.close()
    return path, made


def test_every_record_is_on_disk_before_the_next_one(observation: Any, tmp_path: Path) -> None:
    path = tmp_path / "observations.jsonl"
    recorder = Recorder(path)
    for n in range(3):
        recorder.add(observation(order=n))
        assert [one.order for one in read(path)] == list(range(n + 1))
    recorder.close()


def test_a_torn_last_line_loses_that_record_only(three: tuple[Path, list[Observation]]) -> None:
    path, _ = three
    whole = path.read_bytes()
    ends = [n + more for n, byte in enumerate(whole) if byte == 10 for more in (-1, 0, 1, 2)]
    for size in sorted({*range(0, len(whole), 23), *ends, len(whole)}):
        path.write_bytes(whole[:size])
        kept = whole[:size].count(b"\n")
        found = [one.order for one in read(path)]
        # A last line that lacks nothing but its line end is a whole record.
        lacks_only_the_end = whole[size : size + 1] == b"\n"
        assert found == list(range(kept + lacks_only_the_end)), size


def test_going_on_after_a_torn_line_joins_no_records(
    three: tuple[Path, list[Observation]], observation: Any
) -> None:
    path, _ = three
    whole = path.read_bytes()
    for size in range(0, len(whole) + 1, 67):
        path.write_bytes(whole[:size])
        cut_torn_line(path)
        recorder = Recorder(path)
        recorder.add(observation(order=99))
        recorder.close()
        assert [one.order for one in read(path)] == [*range(whole[:size].count(b"\n")), 99]


def test_cutting_leaves_whole_and_missing_files_alone(
    three: tuple[Path, list[Observation]], tmp_path: Path
) -> None:
    path, _ = three
    whole = path.read_bytes()
    cut_torn_line(path)
    assert path.read_bytes() == whole
    cut_torn_line(tmp_path / "none.jsonl")
    assert not (tmp_path / "none.jsonl").exists()


@pytest.mark.parametrize(
    "line", ["{", "12", "null", "[]", "{}", '{"schema": 1}', '{"schema": 2, "answer": {}}']
)
def test_a_bad_line_inside_is_named(line: str, three: tuple[Path, list[Observation]]) -> None:
    path, _ = three
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], line, lines[2], ""]))
    with pytest.raises(ResultsError, match=r"line 2 is not a record of this version"):
        read(path)


def test_unknown_keys_of_a_newer_version_are_passed_over(observation: Any) -> None:
    data = json.loads(to_json(observation(order=4)))
    data["later"] = 1
    data["answer"]["later"] = 2
    assert from_json(json.dumps(data)) == observation(order=4)


def test_records_from_before_the_load_figures_can_be_read(observation: Any) -> None:
    old = json.loads(to_json(observation(alone=True, computed=1)))
    del old["alone"], old["computed"]
    assert from_json(json.dumps(old)) == observation(alone=None, computed=None)


def test_places_that_cannot_be_written_or_read(tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match="cannot write") as caught:
        Recorder(tmp_path / "no" / "observations.jsonl")
    assert caught.value.hint
    with pytest.raises(ResultsError, match="cannot read"):
        read(tmp_path / "none.jsonl")


@pytest.mark.parametrize(
    ("prompt", "cached", "tail"), [(193, 192, 1), (193, 0, 193), (None, 192, None), (193, None, None)]
)
def test_the_tail_is_known_only_from_the_servers_own_counts(
    prompt: int | None, cached: int | None, tail: int | None, observation: Any
) -> None:
    assert observation(prompt_tokens=prompt, cached_tokens=cached).tail_seen == tail


def test_reached_needs_a_prediction_and_the_count(observation: Any) -> None:
    assert observation(expected_cached=192, cached_tokens=192).reached
    assert not observation(expected_cached=192, cached_tokens=128).reached
    assert not observation(expected_cached=192, cached_tokens=None).reached
    assert not observation(expected_cached=None, cached_tokens=None).reached


def test_frame_has_a_row_for_each_observation(observation: Any) -> None:
    made = [
        observation(order=0, cached_tokens=0),
        observation(order=1, cached_tokens=192, expected_cached=192, faces={"null": 20, "nan": 1}, values=21),
    ]
    table = frame(made)
    assert list(table["order"]) == [0, 1]
    assert list(table["tail_seen"]) == [193, 1]
    assert list(table["reached"]) == [False, True]
    assert list(table["nonfinite"]) == [0, 21]
    assert {"input_ids", "answer"}.isdisjoint(table.columns)
