"""The fault region of a real server, and the tails that follow; without a named GPU nothing is guessed."""

import json
from pathlib import Path
from typing import Any

import pytest

from fidelity.engines.facts import ServerFacts, read_facts
from fidelity.errors import PlanError
from fidelity.fault_region import learn
from fidelity.plan import Target, build
from fidelity.plan_probes import Resend
from fidelity.probes.cells import choose_cells

MODEL = "Qwen3.6-35B-A3B-FP8"


def facts(model: str = f"Qwen/{MODEL}", tp: int = 1, **more: Any) -> ServerFacts:
    info = {"version": "0.5.21", "model_path": model, "tp_size": tp, **more}
    return read_facts(info, {})


def target(gpu: str | None = "mi350x", **more: Any) -> Target:
    return Target(kind="attach", url="http://h", gpu=gpu, **more)


@pytest.mark.parametrize(("tp", "region"), [(1, 1), (2, 2), (4, 4), (8, 4)])
def test_the_region_follows_from_model_tp_and_gpu(tp: int, region: int) -> None:
    found = learn(target(), facts(tp=tp))
    assert found.fault_region == region
    cells = choose_cells(Resend(), found)
    assert [cell.tail for cell in cells if cell.kind == "suspect"] == list(range(1, region + 1))
    assert [cell.tail for cell in cells if cell.kind == "control"] == [region + 1, 33]
    assert cells[0].why == (
        f"{MODEL} (preset {MODEL}) at TP {tp} on mi350x with 256 compute units is affected up to M = {region}"
    )


def test_without_a_gpu_nothing_is_guessed() -> None:
    assert learn(target(None), facts()) == facts()
    tails = [cell.tail for cell in choose_cells(Resend(), facts())]
    assert tails == [1, 2, 3, 4, 33]


def test_the_embedded_engine_tells_its_own() -> None:
    own = ServerFacts("fidelity-embedded", "0.1.0", MODEL, fault_region=2, simulated=True)
    assert learn(target(), own) == own


def test_an_unknown_model_stays_unknown_and_says_so() -> None:
    found = learn(target(), facts("some/model"))
    assert found.fault_region is None
    assert found.notes[-1] == (
        "GPU mi350x is named, but the fault region is not known: no preset and no config.json here tells the "
        "shape of some/model"
    )


def test_dp_attention_is_not_computed() -> None:
    found = learn(target(), facts(tp=4, dp_size=4, enable_dp_attention=True))
    assert found.fault_region is None
    assert "DP attention" in found.notes[-1]


def test_a_local_folder_tells_its_shape(tmp_path: Path) -> None:
    config = {
        "hidden_size": 2560,
        "moe_intermediate_size": 640,
        "num_experts": 512,
        "num_experts_per_tok": 10,
    }
    fp8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    (tmp_path / "config.json").write_text(json.dumps({**config, "quantization_config": fp8}))
    assert learn(target(), facts(str(tmp_path), tp=8)).fault_region == 2
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = learn(target(), facts(str(tmp_path), tp=8))
    assert found.fault_region == 0
    (cell, *_) = choose_cells(Resend(), found)
    assert "the checkpoint is not quantised; it has no affected batch size" in cell.why


def test_a_preset_served_from_a_folder_of_another_name(tmp_path: Path) -> None:
    named = Target(kind="process", model=MODEL, gpu="mi350x")
    assert learn(named, facts(str(tmp_path), tp=2)).fault_region == 2


def test_the_version_and_the_partition_count() -> None:
    big = "Qwen/Qwen3.5-397B-A17B-FP8"
    assert learn(target(), facts(big, tp=8)).fault_region == 1
    new = learn(target(), facts(big, tp=8, version="0.5.22"))
    assert new.fault_region == 0
    assert "smallm_moe_gfx950; it" in new.region_source
    part = learn(target(compute_units=56), facts(tp=8))
    assert part.fault_region == 0
    assert "56 compute units" in part.region_source


def test_expert_parallelism_counts() -> None:
    assert learn(target(), facts(tp=8, ep_size=8)).fault_region == 1  # 512 columns and 32 experts a rank


def test_an_unknown_gpu_is_refused_with_the_plan() -> None:
    with pytest.raises(PlanError, match="no GPU 'mi350'") as caught:
        build({"target": {"gpu": "mi350"}})
    assert "did you mean 'mi350x'?" in (caught.value.hint or "")
    assert build({"target": {"gpu": "MI300X"}}).target.gpu == "mi300x"


def test_a_run_records_the_region_and_where_it_comes_from(play: Any, fake_sglang: Any) -> None:
    fake = fake_sglang(info={"model_path": f"Qwen/{MODEL}", "served_model_name": MODEL})
    played = play(fake, {"target": {"gpu": "mi355x"}})
    told = played.manifest.arms["none"].facts
    assert told["fault_region"] == 1
    assert told["region_source"].endswith("on mi355x with 256 compute units")
