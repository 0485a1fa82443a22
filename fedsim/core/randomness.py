"""Random generators that depend on a name, not on the order of calls, so every engine draws alike."""

import hashlib

import torch


def derived_seed(seed: int, *names: str | int) -> int:
    """Return a seed for one purpose, such as (seed, "batch", round, client)."""
    digest = hashlib.sha256("/".join(map(str, (seed, *names))).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1  # torch and numpy take 63 bits


def generator(seed: int, *names: str | int) -> torch.Generator:
    """Return a CPU generator for one purpose, independent of all others."""
    return torch.Generator().manual_seed(derived_seed(seed, *names))
