from collections.abc import Sequence
from typing import Any

import pytest
import yaml

from fidelity.errors import PlanError
from fidelity.paths import data_dir
from fidelity.servers import launch
from fidelity.servers.launch import command, flag_name, given, preset


def argv(flags: dict[str, Any], *user: str, version: str = "0.5.21") -> list[str]:
    return command(["s"], "m", flags, 5, version=version, help_text=_not_asked, user=user)


def _not_asked() -> str:
    raise AssertionError("the version tells it")


def test_the_order_is_flags_address_and_the_users_own() -> None:
    assert argv({"a": 1, "b": True, "c": False}, "--d", "2") == [
        *("s", "--model-path", "m", "--a", "1", "--b"),
        *("--host", "127.0.0.1", "--port", "5", "--d", "2"),
    ]


@pytest.mark.parametrize(
    ("user", "gone"),
    [
        (("--tp", "2"), "--tp-size"),
        (("--tensor-parallel-size=2",), "--tp-size"),
        (("--mamba-scheduler-strategy", "no_buffer"), "--mamba-radix-cache-strategy"),
        (("--model", "other"), "--model-path"),
        (("--port", "6"), "5"),
        (("--host=0.0.0.0",), "127.0.0.1"),
    ],
)
def test_a_users_flag_replaces_ours_by_any_of_its_names(user: Sequence[str], gone: str) -> None:
    words = argv({"tp-size": 1, "mamba-radix-cache-strategy": "extra_buffer"}, *user)
    assert gone not in words
    assert words[-len(user) :] == list(user)


@pytest.mark.parametrize(
    ("version", "name"),
    [
        ("0.5.9", "scheduler"),
        ("0.5.13.post1", "scheduler"),
        ("0.5.14", "radix-cache"),
        ("1.0.0", "radix-cache"),
    ],
)
def test_a_renamed_flag_follows_the_version(version: str, name: str) -> None:
    assert flag_name("mamba-radix-cache-strategy", version, _not_asked) == f"mamba-{name}-strategy"


@pytest.mark.parametrize("version", [None, "unknown", "0.0.0", "0.0.0.dev1+g123"])
def test_help_is_asked_where_the_version_is_unsure(version: str | None) -> None:
    new, old = "mamba-radix-cache-strategy", "mamba-scheduler-strategy"
    assert flag_name(new, version, lambda: f"  --{new} X") == new
    assert flag_name(new, version, lambda: f"  --{old} X") == old
    assert flag_name("page-size", version, _not_asked) == "page-size"


def test_given_reads_what_the_user_wrote() -> None:
    assert given("port", ("--a", "--port", "5", "--port=6")) == "6"
    assert given("port", ("--port",)) == ""
    assert given("port", ("--ports", "5")) is None


def test_every_shipped_preset_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [path.stem for path in (data_dir("configs") / "models").glob("*.yaml")]
    assert "Qwen3.6-35B-A3B-FP8" in names
    for name in names:
        assert preset(name).flags["mamba-radix-cache-strategy"] == "extra_buffer"
        assert preset(f"Qwen/{name}").model == preset(name).model


def test_other_models_have_no_preset() -> None:
    assert preset("org/model") == launch.Preset("org/model")


def test_a_broken_preset_is_named(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "broken.yaml").write_text(yaml.safe_dump({"serve": {}}))
    monkeypatch.setattr(launch, "data_dir", lambda _name: tmp_path)
    with pytest.raises(PlanError, match=r"broken\.yaml is no model preset"):
        preset("broken")
