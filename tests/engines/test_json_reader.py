"""Every way in which a server says that a logprob is not a number."""

import math
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fidelity.engines.json_reader import error_message, is_nan_error, number, parse


@pytest.mark.parametrize(
    ("text", "face", "value"),
    [
        ("null", "null", math.nan),
        ("NaN", "nan", math.nan),
        ("Infinity", "inf", math.inf),
        ("-Infinity", "-inf", -math.inf),
        ("1e999", "inf", math.inf),
        ("-3.4028234663852886e38", "huge", -math.inf),  # -inf clamped to the least float32
        ("3.4028234663852886e38", "huge", math.inf),
        ("-1e31", "huge", -math.inf),
        ("-9999.0", "-9999", -9999.0),
        ("-9999", "-9999", -9999.0),
        ("-100.0", "-100", -100.0),
        ('"NaN"', "not a number", math.nan),
        ("true", "not a number", math.nan),
        ("[]", "not a number", math.nan),
        ("{}", "not a number", math.nan),
    ],
)
def test_each_face_under_its_own_name(text: str, face: str, value: float) -> None:
    faces: Counter[str] = Counter()
    found = number(parse(text), faces)
    assert faces == {face: 1}
    assert found == value or (math.isnan(found) and math.isnan(value))


@pytest.mark.parametrize(
    "value", [0.0, -0.0, 0, -1, -6.2383246421813965, -99.9, -100.5, -9998.5, -1e30, 1e30]
)
def test_plain_numbers_have_no_face(value: float) -> None:
    faces: Counter[str] = Counter()
    assert number(value, faces) == value
    assert not faces


@given(st.floats() | st.integers() | st.none() | st.booleans() | st.text("na1-") | st.lists(st.none()))
def test_no_value_goes_by_uncounted(value: Any) -> None:
    """A value without a face is exactly the finite number that was sent."""
    faces: Counter[str] = Counter()
    found = number(value, faces)
    assert sum(faces.values()) <= 1
    if not faces:
        assert math.isfinite(found)
        assert found == float(value)
        assert abs(found) <= 1e30


def test_faces_add_up() -> None:
    faces: Counter[str] = Counter()
    for value in (None, None, math.nan, -1.0):
        number(value, faces)
    assert faces == {"null": 2, "nan": 1}


@pytest.mark.parametrize("text", ["", "<html>", "Internal Server Error", "{", "{'a': 1}", "NaN NaN"])
def test_what_is_not_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"Expecting|Extra data"):
        parse(text)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"error": {"message": "input_ids cannot be empty."}}, "input_ids cannot be empty."),  # /generate
        ({"object": "error", "message": "no chat template", "code": 500}, "no chat template"),  # chat
        ({"error": "overloaded"}, "overloaded"),
        ({"detail": "Not Found"}, "the body"),
        ({"error": {"message": {"a": 1}}}, "the body"),
        ([1], "the body"),
        (None, "the body"),
    ],
)
def test_the_servers_own_words(data: Any, message: str) -> None:
    assert error_message(data, "the body") == message


def test_a_long_body_is_cut() -> None:
    assert error_message(None, "x" * 1000) == "x" * 300


@pytest.mark.parametrize(
    ("status", "message", "is_nan"),
    [
        (500, "Out of range float values are not JSON compliant", True),  # sglang up to 0.5.9
        (400, "Out of range float values are not JSON compliant: nan", True),  # vLLM
        (500, "Internal server error: Out of range float values are not JSON compliant", True),
        (500, "Internal Server Error", False),
        (503, "Out of range float values are not JSON compliant", False),
        (200, "Out of range float values are not JSON compliant", False),
    ],
)
def test_a_json_encoder_that_met_a_nan(status: int, message: str, is_nan: bool) -> None:
    assert is_nan_error(status, message) is is_nan
