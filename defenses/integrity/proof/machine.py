"""What of a machine decides the last bits of a step, as a proof says it, and computing as it did.

A verifier that adds in the order that the prover added gets the same bits, so another number of threads
wrongs nobody. It takes the prover's word for it: no choice of these leads anywhere but to true steps.
"""

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fedsim.defenses.integrity.proof.reproduction import other_threads, plain_kernels

MOST_THREADS = 256
PLAIN = "plain kernels"


def machine() -> str:
    """Return, in words, what of this machine decides the last bits of a sum."""
    kernels = "oneDNN" if torch.backends.mkldnn.enabled else PLAIN
    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()} {kernels}"


@contextmanager
def as_on(described: str, threads: int) -> Iterator[None]:
    """Compute with as many threads and the kernels that a proof names, as far as this machine has them."""
    most = max(MOST_THREADS, os.cpu_count() or 1)
    with other_threads(min(max(1, threads), most)):
        if described.endswith(PLAIN) and torch.backends.mkldnn.enabled:
            with plain_kernels():
                yield
        else:
            yield
