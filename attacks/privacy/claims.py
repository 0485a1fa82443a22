"""What a client claims of its training, and how far an attack goes along with it.

A client may claim anything, and its gradient, being a mean, contradicts little of it. So what no client can
mean is refused, and what asks for more work or memory than there is: the fault of that client alone.
"""

import math
import os
import resource
from pathlib import Path

import torch
from torch import Tensor

from fedsim.core.errors import FedsimError
from fedsim.core.types import Observation, Task

MOST_EXAMPLES = 2**24  # of more, one is less than what float32 rounds off their mean gradient
MOST_STEPS = 10_000  # that some attacks play one by one
MOST_PIXELS = 2**24  # of all images to find
MOST_NUMBERS = 2**28  # in an array that grows with the examples claimed
LARGEST = 1e18  # entry of a gradient whose square float32 can hold
SMALLEST = 1e-45  # number of float32
CONTAINER = Path("/sys/fs/cgroup/memory.max")  # of the container, if there is one


def checked(observation: Observation) -> Observation:
    """Return an observation whose numbers are those of a gradient, or say which of them is not."""
    for name, most in (("num_examples", MOST_EXAMPLES), ("local_steps", MOST_STEPS)):
        claimed = getattr(observation, name)
        if claimed is not None and not 1 <= claimed <= most:
            raise FedsimError(
                f"{name}: expected from 1 to {most}, got a client's claim of {claimed}. "
                "Remedy: distrust this client."
            )
    if (largest := _largest_entry(observation)) > LARGEST:
        raise FedsimError(
            f"received: expected entries of at most {LARGEST:g}, got {largest:.3g}, which is no gradient. "
            "Remedy: distrust this client; a diverging one wants a smaller learning rate."
        )
    return observation


def local_training(observation: Observation) -> tuple[int, float | None]:
    """Return the local steps behind an observation, and their learning rate; None: it is a gradient."""
    if observation.kind == "gradient":
        return 1, None
    steps, rate = observation.local_steps, observation.learning_rate
    if rate is None or steps is None:
        raise FedsimError(
            "an update is a gradient only up to the learning rate and the number of local steps, and the "
            "clients do not disclose both. Remedy: add learning_rate and local_steps to federation.disclose; "
            "of a tapped app, say them: told.learning_rate=... told.local_steps=..."
        )
    largest = _largest_entry(checked(observation))
    if not rate > 0 or (largest and not SMALLEST <= largest / rate / steps <= LARGEST):
        raise FedsimError(
            f"learning_rate: expected one that makes a gradient of an update with entries up to "
            f"{largest:.3g}, got a client's claim of {rate:.3g}. Remedy: distrust this client."
        )
    return steps, rate


def gradient_factor(observation: Observation) -> float:
    """Return the factor that turns what was received into a mean gradient."""
    steps, rate = local_training(observation)
    return 1.0 if rate is None else -1.0 / (rate * steps)


def class_counts(observation: Observation, task: Task) -> Tensor | None:
    """Return the claimed counts of all classes, which must add up to the examples claimed."""
    counts, size = observation.class_counts, observation.num_examples
    if counts is None:
        return None
    total = sum(counts)
    right = len(counts) == task.num_classes and min(counts) >= 0 and 1 <= total <= MOST_EXAMPLES
    if not right or size not in (None, total):
        told = f"{MOST_EXAMPLES} or fewer" if size is None else f"the {size} examples claimed"
        raise FedsimError(
            f"class_counts: expected {task.num_classes} counts that add up to {told}, "
            f"got {len(counts)} that add up to {total}. Remedy: distrust this client."
        )
    return torch.tensor(counts)


def expect_images(number: int, task: Task) -> None:
    """Refuse to find more images than an attack could work on."""
    most = MOST_PIXELS // math.prod(task.input_shape)
    if number > most:
        raise FedsimError(
            f"num_examples: expected at most {most} images of shape {task.input_shape} to find, got a "
            f"client's claim of {number}. Remedy: distrust this client, or smaller batches."
        )


def expect_room(numbers: int, what: str) -> None:
    """Refuse an array that is too large because of what a client claims."""
    if numbers > MOST_NUMBERS:
        raise FedsimError(
            f"{what}: expected at most {MOST_NUMBERS} numbers to work with, got {numbers}. "
            "Remedy: distrust a client that claims too much, or smaller batches."
        )


def expect_memory(size: int, device: torch.device, what: str) -> None:
    """Refuse work that asks for more bytes than the machine has."""
    if size > (most := memory(device)):
        raise FedsimError(
            f"{what}: expected to take at most the machine's {most / 2**30:.3g} GiB, got about "
            f"{size / 2**30:.3g} GiB. Remedy: distrust a client that claims too much, or smaller batches."
        )


def memory(device: torch.device) -> int:
    """Return how many bytes a device has for this process."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    if (own := resource.getrlimit(resource.RLIMIT_AS)[0]) != resource.RLIM_INFINITY:
        limits.append(own)
    if CONTAINER.exists() and (allowed := CONTAINER.read_text().strip()).isdigit():
        limits.append(int(allowed))
    return min(limits)


def _largest_entry(observation: Observation) -> float:
    sizes = [torch.aminmax(tensor) for tensor in observation.received.values() if tensor.numel()]
    return max((max(-float(size.min), float(size.max)) for size in sizes), default=0.0)
