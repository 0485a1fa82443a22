"""What of a machine decides the last bits of a step, as a proof says it, and computing as it did.

A verifier that adds in the order that the prover added gets the same bits, so another number of threads
wrongs nobody. It takes the prover's word for it: no choice of these leads anywhere but to true steps.
"""

import functools
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import torch

from fedsim.defenses.integrity.proof.reproduction import other_threads, plain_kernels

PLAIN = "plain kernels"


def machine() -> str:
    """Return, in words, what of this machine decides the last bits of a sum."""
    kernels = "oneDNN" if torch.backends.mkldnn.enabled else PLAIN
    device = " and a GPU" if torch.cuda.is_available() else ""
    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()} ({processor()}{device}) {kernels}"


@functools.cache
def processor() -> str:
    """Return what tells one processor's libraries from another's: they choose their code by it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        return platform.processor()
    facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    names = ("model name", "cpu family", "model", "stepping", "CPU implementer", "CPU part")
    return " ".join(facts[name] for name in names if name in facts)


def computes_alike(described: str, threads: int, torch_version: str) -> bool:
    """Say whether this process, as it is set now, computes the bits that a proof's machine did."""
    here = (machine(), torch.get_num_threads(), version("torch"))
    return here == (described, threads, torch_version) and not torch.cuda.is_available()


def cores() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def as_on(described: str, threads: int) -> Iterator[None]:
    """Compute with as many threads and the kernels that a proof names, as far as this machine has them.

    A proof of more threads than there are cores here is judged by delta.
    """
    # More threads than cores would cost the verifier hundreds of times the work, at the prover's word.
    most = max(cores(), torch.get_num_threads())
    with other_threads(min(max(1, threads), most)):
        if described.endswith(PLAIN) and torch.backends.mkldnn.enabled:
            with plain_kernels():
                yield
        else:
            yield
