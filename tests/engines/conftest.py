import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fidelity.engines.sglang import read_response
from fidelity.observations import Answer

SAMPLES = Path(__file__).parent / "samples"


@pytest.fixture(scope="session")
def recorded() -> dict[str, dict[str, Any]]:
    """Answers of real servers: source, status and body of each."""
    return json.loads((SAMPLES / "recorded.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def info() -> dict[str, dict[str, Any]]:
    """`/server_info` and `/model_info` of real servers, cut to some keys."""
    return json.loads((SAMPLES / "info.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def read(recorded: dict[str, dict[str, Any]]) -> Callable[[str], Answer]:
    """The answer read from a recorded sample."""

    def answer(name: str) -> Answer:
        sample = recorded[name]
        return read_response(sample["status"], json.dumps(sample["body"]), 0.1)[0]

    return answer
