"""Errors a user can meet; each message says what happened and where, each hint what to do next.

FidelityError                    exit 1 is Python's own: every class below sets its code
├── UsageError            2      a flag or an argument that cannot be used
│   ├── PlanError                a plan file or its values
│   ├── PromptError              a prompt file or one entry of it
│   │   └── LengthError          a templated length that cannot be reached
│   └── ResultsError             a run directory that cannot be written or read
└── ServerError           3      the server could not be started, reached, kept or proved
    ├── StartError               it did not start
    ├── UnreachableError         it does not answer
    └── NotWhatWasAskedError     it answers, and is not what the plan named
"""

import difflib
from collections.abc import Iterable

PASS, FAIL, INCONCLUSIVE, USAGE, COULD_NOT_RUN, INTERRUPTED = 0, 10, 11, 2, 3, 130


class FidelityError(Exception):
    """Base of every error meant for the user: `message` is one sentence, `hint` the way on."""

    exit_code = COULD_NOT_RUN

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(FidelityError):
    """The command or its configuration cannot be used as given."""

    exit_code = USAGE


class PlanError(UsageError):
    """A plan (file or flags) is not valid."""


class PromptError(UsageError):
    """A prompt file, or an entry of it, is not valid."""


class LengthError(PromptError):
    """A prompt cannot be fitted to the wanted number of templated tokens."""


class ResultsError(UsageError):
    """A run directory cannot be written, or is not one."""


class ServerError(FidelityError):
    """The server could not be started, reached, kept, or proved to be what was asked."""


class StartError(ServerError):
    """The server did not start."""


class UnreachableError(ServerError):
    """The server does not answer, or stopped answering."""


class NotWhatWasAskedError(ServerError):
    """The server answers but is not what the plan names."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`did you mean 'x'?` for the closest of `known`, else the list of them."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    if close:
        return f"did you mean '{close[0]}'?"
    return "known: " + ", ".join(names)
