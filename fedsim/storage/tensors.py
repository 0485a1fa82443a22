"""Tensors with notes as safetensors files. Apart from the rest, which needs no torch."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from fedsim.core.errors import FedsimError
from fedsim.storage.files import reading, tensor_header


def tensor_bytes(tensors: Mapping[str, Tensor], notes: Mapping[str, Any] | None = None) -> bytes:
    """Return tensors as a safetensors file's content, with notes as JSON beside them."""
    # Copies: safetensors takes pointer and length, and knows neither strides nor who shares the memory.
    try:
        plain = {
            name: torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor.detach().resolve_conj())
            for name, tensor in tensors.items()
        }
        return save(plain, metadata={"notes": json.dumps(dict(notes or {}))})
    except (SafetensorError, RuntimeError, KeyError, ValueError, TypeError) as error:  # types, memory, notes
        raise FedsimError(f"tensors {', '.join(tensors)}: cannot be stored ({error})") from error


def tensors_from(content: bytes, path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return what tensor_bytes made: tensors in memory of their own, and notes; path: for complaints."""
    with reading(path):
        try:
            tensors = load(content)
        except SafetensorError as error:
            raise ValueError(error) from error
        noted = tensor_header(content).get("__metadata__", {})
        notes: dict[str, Any] = dict(json.loads(noted.get("notes", "{}")))
        return {name: tensors[name] for name in sorted(tensors)}, notes


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read a safetensors file, wherever it comes from."""
    if not path.is_file():
        raise FedsimError(f"no such file: {path}. Remedy: name a run folder that holds it.")
    with reading(path):
        return tensors_from(path.read_bytes(), path)
