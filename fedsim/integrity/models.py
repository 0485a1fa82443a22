"""Trained weights as files beside their proofs."""

from pathlib import Path

from fedsim.core.errors import FedsimError
from fedsim.core.types import Weights
from fedsim.storage.tensors import tensors_from


def model_bytes(path: Path) -> bytes:
    """Read a file of weights, such as `fedsim prove` leaves."""
    if not path.is_file():
        raise FedsimError(f"{path}: expected a model in safetensors, such as `fedsim prove` leaves, got none")
    return path.read_bytes()


def read_model(path: Path, content: bytes | None = None) -> Weights:
    """Return the weights in a safetensors file; content: as it was read before."""
    return tensors_from(model_bytes(path) if content is None else content, path)[0]
