import inspect
import re

import pytest

from fidelity import errors
from fidelity.errors import FidelityError, did_you_mean


def _classes() -> list[type[FidelityError]]:
    found = [value for _, value in inspect.getmembers(errors, inspect.isclass)]
    return [value for value in found if issubclass(value, FidelityError)]


@pytest.mark.parametrize(
    ("code", "name"),
    [
        (0, "PASS"),
        (10, "FAIL"),
        (11, "INCONCLUSIVE"),
        (2, "USAGE"),
        (3, "COULD_NOT_RUN"),
        (130, "INTERRUPTED"),
    ],
)
def test_exit_codes_are_a_published_contract(code: int, name: str) -> None:
    assert getattr(errors, name) == code


def test_what_the_user_gave_is_2_and_what_the_server_did_is_3() -> None:
    for cls in _classes():
        expected = 2 if issubclass(cls, errors.UsageError) else 3
        assert cls("what").exit_code == expected, cls.__name__
    assert issubclass(errors.LengthError, errors.PromptError)
    assert issubclass(errors.UnreachableError, errors.ServerError)


def test_the_tree_in_the_docstring_names_every_class_below_its_base() -> None:
    lines = (errors.__doc__ or "").splitlines()
    depth = {}
    for line in lines:
        drawn = re.match(r"^([│├└─\s]*)(\w+Error)\b", line)
        if drawn:
            depth[drawn[2]] = len(drawn[1])
    assert set(depth) == {cls.__name__ for cls in _classes()}
    for cls in _classes():
        if cls is not FidelityError:
            assert depth[cls.__name__] > depth[cls.__bases__[0].__name__]


def test_message_and_hint_are_kept_apart() -> None:
    error = errors.StartError("it did not start", "install it")
    assert (str(error), error.message, error.hint) == ("it did not start", "it did not start", "install it")
    assert errors.StartError("alone").hint is None


@pytest.mark.parametrize(
    ("word", "meant"), [("promts", "prompts"), ("thresholds_", "thresholds"), ("Seed", "seed")]
)
def test_did_you_mean_the_nearest(word: str, meant: str) -> None:
    assert did_you_mean(word, ["seed", "prompts", "thresholds"]) == f"did you mean '{meant}'?"


def test_did_you_mean_lists_all_when_nothing_is_near() -> None:
    assert did_you_mean("zebra", ["seed", "arms"]) == "known: arms, seed"
