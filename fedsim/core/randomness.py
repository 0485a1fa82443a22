"""Random generators that depend on a name, not on the order of calls, so every engine draws alike."""

import hashlib
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import torch


def derived_seed(seed: int, *names: str | int) -> int:
    """Return a seed for one purpose, such as (seed, "batch", round, client)."""
    digest = hashlib.sha256("/".join(map(str, (seed, *names))).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1  # torch and numpy take 63 bits


def generator(seed: int, *names: str | int) -> torch.Generator:
    """Return a CPU generator for one purpose, independent of all others."""
    return torch.Generator().manual_seed(derived_seed(seed, *names))


@contextmanager
def undisturbed() -> Iterator[None]:
    """Leave the global generators as they were: an app's model, sampling and noise may draw from them."""
    state, noise = random.getstate(), np.random.get_state()  # noqa: NPY002
    devices = list(range(torch.cuda.device_count()))
    with ExitStack() as stack:
        stack.callback(np.random.set_state, noise)
        stack.callback(random.setstate, state)
        stack.enter_context(torch.random.fork_rng(devices=devices))
        yield
