"""Trained weights as files beside their proofs."""

from pathlib import Path

from fedsim.core.errors import FedsimError
from fedsim.core.types import Weights
from fedsim.storage.tensors import tensors_from


def read_model(path: Path) -> Weights:
    """Read the weights that `fedsim prove` left, or any safetensors file."""
    if not path.is_file():
        raise FedsimError(f"{path}: expected a model in safetensors, such as `fedsim prove` leaves, got none")
    return tensors_from(path.read_bytes(), path)[0]
