"""What pictures look like, learnt from public ones, and what it was learnt from: one safetensors file."""

import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fedsim.core.errors import FedsimError
from fedsim.models.denoiser import Denoiser

SHIPPED = Path(__file__).resolve().parent.parent / "assets" / "prior_cifar10_small.safetensors"
FINGERPRINTS = "fingerprints"  # beside the weights, in the file
NOTES = ("data", "split", "size", "seed", "digest", "width", "channels", "side")


@dataclass(frozen=True, kw_only=True, eq=False)
class LearntPrior:
    """A denoiser and the public images that it was trained on."""

    network: Denoiser
    fingerprints: Tensor  # (N,) int64: of the images
    notes: Mapping[str, Any]  # data, split, size, seed, digest of the images, ...

    @property
    def name(self) -> str:
        """What it was learnt from, in words."""
        told = self.notes
        return f"{told['size']} {told['split']} images of {told['data']}, digest {told['digest'][:12]}"


def digest(images: Tensor) -> str:
    """Return the SHA-256 of images at 256 levels, in their order."""
    return hashlib.sha256(images.mul(255).round().to(torch.uint8).cpu().numpy().tobytes()).hexdigest()


def read_prior(file: str | None = None) -> LearntPrior:
    """Read what `fedsim prior train` wrote; None: the prior in the package, of CIFAR-10's public pictures."""
    return _read(SHIPPED if file is None else Path(file))


@functools.lru_cache(maxsize=4)
def _read(path: Path) -> LearntPrior:
    if not path.is_file():
        raise FedsimError(f"no such file: {path}. Remedy: a prior made by `fedsim prior train`.")
    try:
        with safe_open(str(path), framework="pt") as stored:
            notes = json.loads(dict(stored.metadata() or {}).get("notes", "{}"))
            tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
        fingerprints = tensors.pop(FINGERPRINTS)
        if missing := [name for name in NOTES if name not in notes]:
            raise KeyError(missing[0])
        network = Denoiser(notes["channels"], notes["width"])
        network.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
    except (SafetensorError, KeyError, TypeError, RuntimeError, ValueError) as error:
        raise FedsimError(
            f"{path}: no prior ({type(error).__name__}: {error}). Remedy: one made by `fedsim prior train`."
        ) from error
    return LearntPrior(network=network.eval().requires_grad_(False), fingerprints=fingerprints, notes=notes)
