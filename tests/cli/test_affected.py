"""`fidelity affected`: the table before anything is sent, and every kind of bad input."""

import json
from pathlib import Path

import pytest

from .conftest import Here

MODEL = "Qwen3.6-35B-A3B-FP8"


@pytest.mark.parametrize(
    ("model", "row"),
    [
        (MODEL, ["1", "<= 2", "<= 4", "<= 4"]),
        ("Qwen3.5-397B-A17B-FP8", ["-", "-", "-", "1"]),
        ("Qwen3.8-Flash-Next-FP8", ["-", "-", "1", "<= 2"]),
    ],
)
def test_the_second_threads_table(here: Here, model: str, row: list[str]) -> None:
    done = here("affected", "--model", model, "--markdown")
    assert done.code == 0, done.err
    lines = [
        line.split("|") for line in done.out.splitlines() if line.startswith(("| 1", "| 2", "| 4", "| 8"))
    ]
    assert [line[3].strip() for line in lines] == row
    assert "256 compute units" in done.out
    assert "default heuristic" in done.out
    assert "ksplit" in done.out


def test_text_is_the_default_and_json_holds_the_rows(here: Here) -> None:
    text = here("affected", "--model", MODEL, "--tp", "2, 4")
    assert text.code == 0, text.err
    assert "3, 33" in text.out
    done = here("affected", "--model", MODEL, "--tp", "2,4", "--json", "--gpu", "mi300x")
    data = json.loads(done.out)
    assert [(row["tp"], row["largest"], row["controls"]) for row in data["rows"]] == [
        (2, 2, [3, 33]),
        (4, 4, [5, 33]),
    ]
    assert data["gpu"] == {"name": "mi300x", "arch": "gfx942", "units": 304}


def test_compute_units_and_version_count(here: Here) -> None:
    small = here("affected", "--model", MODEL, "--cu", "80", "--json")
    assert [row["largest"] for row in json.loads(small.out)["rows"]] == [0, 0, 1, 1]
    new = here("affected", "--model", "Qwen3.5-397B-A17B-FP8", "--sglang", "0.5.22", "--tp", "8")
    assert "smallm_moe_gfx950" in new.out


def test_a_config_of_ones_own(here: Here, tmp_path: Path) -> None:
    config = {"hidden_size": 2048, "moe_intermediate_size": 512, "num_experts": 256, "num_experts_per_tok": 8}
    (tmp_path / "config.json").write_text(json.dumps(config))
    done = here("affected", "--model", str(tmp_path))
    assert done.code == 0
    assert "Not affected at any TP: the checkpoint is not quantised." in done.out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--model", "Qwen3.6-35B"), "did you mean 'Qwen3.6-35B-A3B-FP8"),
        (("--model", MODEL, "--tp", "3"), "TP 3 does not divide Qwen3.6-35B-A3B-FP8"),
        (("--model", MODEL, "--tp", "two"), "'two' is no size"),
        (("--model", MODEL, "--tp", "0"), "'0' is no size"),
        (("--model", MODEL, "--gpu", "mi350"), "did you mean 'mi350x'?"),
        (("--model", MODEL, "--sglang", "new"), "'new' is no sglang version"),
        (("--model", MODEL, "--ep", "2", "--tp", "1"), "EP 2 does not divide TP 1"),
    ],
)
def test_bad_input_is_one_message(here: Here, words: tuple[str, ...], says: str) -> None:
    done = here("affected", *words)
    assert done.code == 2
    assert says in done.err
    assert "Traceback" not in done.err
    assert done.out == ""


def test_a_model_without_experts(here: Here, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"hidden_size": 1024, "intermediate_size": 4096}')
    done = here("affected", "--model", str(tmp_path))
    assert done.code == 2
    assert "has no mixture of experts" in done.err
    assert "dense models never take the split MoE kernel" in done.err


def test_a_check_takes_the_gpu_and_refuses_an_unknown_one(here: Here) -> None:
    done = here("check", "http://127.0.0.1:9", "--gpu", "mi9")
    assert done.code == 2
    assert "no GPU 'mi9' is known here" in done.err
