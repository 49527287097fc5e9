"""The safetensors format, as much of it as one float checkpoint needs.

A file is the header's length (8 bytes, little endian), the header (JSON: name -> dtype, shape, byte range
after the header), then the tensors' bytes.
"""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .layers import Array


def read(path: Path) -> dict[str, Array]:
    """All tensors as float32. Raises ValueError for a damaged file or a dtype other than F32, F16, BF16."""
    data = path.read_bytes()
    try:
        end = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(data[8:end])
        return {
            name: _decode(data[end + entry["data_offsets"][0] : end + entry["data_offsets"][1]], entry)
            for name, entry in header.items()
            if name != "__metadata__"
        }
    except (KeyError, IndexError, TypeError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is not a safetensors file: {error}") from error


def write(path: Path, tensors: Mapping[str, Array]) -> None:
    """Write the tensors as F32, sorted by name, with the metadata transformers expects."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    parts = []
    offset = 0
    for name in sorted(tensors):
        part = np.ascontiguousarray(tensors[name], dtype="<f4").tobytes()
        shape = list(tensors[name].shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [offset, offset + len(part)]}
        parts.append(part)
        offset += len(part)
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    path.write_bytes(len(head).to_bytes(8, "little") + head + b"".join(parts))


def _decode(raw: bytes, entry: Mapping[str, object]) -> Array:
    dtype, shape = entry["dtype"], entry["shape"]
    flat: NDArray[np.generic]
    if dtype == "BF16":
        flat = (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
    elif dtype in ("F32", "F16"):
        flat = np.frombuffer(raw, "<f4" if dtype == "F32" else "<f2")
    else:
        raise ValueError(f"dtype {dtype} is not supported: F32, F16 or BF16")
    if not isinstance(shape, list):
        raise TypeError("shape is not a list")
    return flat.astype(np.float32).reshape(shape)
