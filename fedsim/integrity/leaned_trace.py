"""Hostile traces that use what a verifier of whole traces puts up with, a little at every step.

No interval is further off than it allows. What stops them is the sum of the errors
(defenses/integrity/proof/leaning.py), and the number of intervals that need another rounding.
"""

import copy
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from fedsim.core.randomness import generator
from fedsim.core.training import Batch, Trace, exact_levels, load_weights, sgd_step, weights_of
from fedsim.core.types import Weights
from fedsim.defenses.integrity.proof.distances import distance
from fedsim.defenses.integrity.proof.reproduction import Variation, rounded
from fedsim.integrity.training import CentralTraining, batch_at, train_centrally

SIDES = 8  # other roundings that a cheat looks at, to see where a unit on the edge may fall


def leaned_back(training: CentralTraining, forged: Mapping[int, Batch], most: float) -> tuple[Trace, float]:
    """After a step on another batch, lean back to the real weights: the trace, and what is left of the gap.

    most: by how much every step leans towards the weights that were really there.
    """
    real = train_centrally(training, 1)
    model, weights = training.fresh(0), [real.checkpoints[0]]
    gap = 0.0
    for step, indices in enumerate(real.indices):
        load_weights(model, weights[-1])
        sgd_step(model, forged.get(step) or batch_at(training, torch.tensor(indices)), training.learning_rate)
        end, wanted = weights_of(model), real.checkpoints[step + 1]
        gap = distance("l2", end, wanted)
        share = min(1.0, most / gap) if gap else 0.0
        leaned: dict[str, Tensor] = {n: end[n] + share * (wanted[n] - end[n]) for n in end}
        weights.append(wanted if share == 1 else leaned)
    return replace(real, checkpoints=tuple(weights)), max(0.0, gap - most)


def led_over_edges(training: CentralTraining, unit: int = 0) -> tuple[Trace, dict[int, Batch]]:
    """Put a hidden unit on the edge at every step, and go on from the side that leads on: trace, and batches.

    Both sides are honest ends of a step but for rounding, so no interval has an error, and weights are led in
    one direction as the cheat likes.
    """
    plain = train_centrally(training, 1)
    model, weights, batches = training.fresh(0), [plain.checkpoints[0]], dict[int, Batch]()
    led = {name: torch.zeros_like(tensor) for name, tensor in weights[0].items()}
    for step, indices in enumerate(plain.indices):
        before = weights[-1]
        load_weights(model, before)
        batches[step] = on_an_edge(model, batch_at(training, torch.tensor(indices)), unit, step)
        ends = list[Weights]()
        for way in (Variation(name="the same"), *(rounded(number, "side") for number in range(SIDES))):
            load_weights(model, before)
            way.step(model, batches[step], training.learning_rate)
            ends.append(weights_of(model))
        leaps = [{name: end[name] - ends[0][name] for name in led} for end in ends]
        gains = [sum(float(((led[n] + leap[n]) ** 2).sum()) for n in led) for leap in leaps]
        best = gains.index(max(gains))
        led = {name: led[name] + leaps[best][name] for name in led}
        weights.append(ends[best])
    return replace(plain, checkpoints=tuple(weights)), batches


def on_an_edge(model: nn.Module, batch: Batch, unit: int, number: int) -> Batch:
    """Return a batch with an image that puts a unit of the first linear layer on the edge, in grey levels.

    Two pixels have 65,536 pairs of levels: of two pairs of pixels some sum is nearer to the edge than float32
    can tell.
    """
    exact = copy.deepcopy(model).double()
    layer = next(module for module in exact.modules() if isinstance(module, nn.Linear))
    heights = list[Tensor]()
    hook = layer.register_forward_hook(lambda _, given, units: heights.append(units[:, unit]))
    images = exact_levels(batch.images).requires_grad_()
    exact(images)
    hook.remove()
    place = int(heights[0].abs().argmin())
    slopes = torch.autograd.grad(heights[0][place], images)[0][place].flatten() / 255
    chosen = torch.randperm(len(slopes), generator=generator(number, "edge"))[:4]
    levels = torch.round(images.detach()[place].flatten() * 255)
    rest = float(heights[0][place].detach()) - float(slopes[chosen] @ levels[chosen])
    steps = torch.arange(256, dtype=torch.float64)
    pairs = [(steps[:, None] * slopes[i] + steps * slopes[j]).flatten() for i, j in chosen.view(2, 2)]
    sums, order = pairs[0].sort()
    near = torch.searchsorted(sums, -rest - pairs[1]).clamp(max=len(sums) - 1)
    second = int((sums[near] + pairs[1] + rest).abs().argmin())
    first = int(order[near[second]])
    levels[chosen] = torch.tensor([first // 256, first % 256, second // 256, second % 256]).double()
    changed = batch.images.clone()
    changed[place] = (levels / 255).to(changed).view_as(changed[place])
    return replace(batch, images=changed)
