import importlib.util

import pytest

from fidelity.errors import StartError
from fidelity.plan import Target
from fidelity.servers.process import require_sglang


def test_without_sglang_the_ways_on_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(StartError, match=r"'Qwen3\.6-35B-A3B-FP8': sglang is not installed here") as caught:
        require_sglang(Target(kind="process", model="Qwen3.6-35B-A3B-FP8"))
    for way in ("install sglang", "--url", "--model embedded"):
        assert way in (caught.value.hint or "")
    assert caught.value.exit_code == 3


def test_with_sglang_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if name == "sglang" else None)
    require_sglang(Target(kind="process", model="m"))
