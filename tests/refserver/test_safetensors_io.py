import json
from pathlib import Path

import numpy as np
import pytest

from fidelity.refserver import safetensors_io


def written(path: Path, header: dict[str, object], body: bytes) -> Path:
    head = json.dumps(header).encode()
    path.write_bytes(len(head).to_bytes(8, "little") + head + body)
    return path


def test_round_trip(tmp_path: Path) -> None:
    tensors = {"b": np.arange(6, dtype=np.float32).reshape(2, 3), "a": np.array([1.5], np.float32)}
    path = tmp_path / "x.safetensors"
    safetensors_io.write(path, tensors)
    got = safetensors_io.read(path)
    assert sorted(got) == ["a", "b"]
    assert all(np.array_equal(got[name], tensors[name]) for name in tensors)
    head = int.from_bytes(path.read_bytes()[:8], "little")
    assert head % 8 == 0
    assert json.loads(path.read_bytes()[8 : 8 + head])["__metadata__"] == {"format": "pt"}


@pytest.mark.parametrize(("dtype", "raw"), [("F16", b"\x00\x3e"), ("BF16", b"\xc0\x3f")])
def test_half_precision_is_widened(tmp_path: Path, dtype: str, raw: bytes) -> None:
    header = {"x": {"dtype": dtype, "shape": [1], "data_offsets": [0, 2]}}
    got = safetensors_io.read(written(tmp_path / "x", header, raw))["x"]
    assert got.dtype == np.float32
    assert got[0] == 1.5


def test_other_dtypes_and_damage_are_refused(tmp_path: Path) -> None:
    header = {"x": {"dtype": "F8_E4M3", "shape": [1], "data_offsets": [0, 1]}}
    with pytest.raises(ValueError, match="dtype F8_E4M3 is not supported"):
        safetensors_io.read(written(tmp_path / "f8", header, b"\x00"))
    damaged = tmp_path / "damaged"
    damaged.write_bytes(b"\x10\x00\x00\x00\x00\x00\x00\x00{not json")
    with pytest.raises(ValueError, match="damaged is not a safetensors file"):
        safetensors_io.read(damaged)
    short = {"x": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}
    with pytest.raises(ValueError, match=r"cannot reshape|buffer size"):
        safetensors_io.read(written(tmp_path / "short", short, b"\x00" * 6))
