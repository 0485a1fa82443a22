"""What a search ends with: the candidate that matches best or all of them pooled, and what is claimed."""

import torch
from torch import Tensor

from fedsim.attacks.privacy.matching.labels import FixedLabels, Joint, LabelSource
from fedsim.attacks.privacy.matching.problem import Problem
from fedsim.attacks.privacy.matching.rows import Rows
from fedsim.attacks.privacy.matching.watch import Watch
from fedsim.core.types import Reconstruction

TRACE = 500  # points that are kept of an objective's curve


def reconstruction(
    problem: Problem,
    best: Watch,
    fixed: FixedLabels | None,
    source: LabelSource,
    *,
    ensemble: bool,
    prior_alone: Tensor | None,
    seconds: float,
) -> Reconstruction:
    """Choose the candidate whose gradient is nearest, or pool them, and say what was recovered."""
    variables = [variable.detach() for variable in best.best]
    labels = problem.labels_of(variables)
    parts = torch.split(problem.parametrisation.images(variables[0]), problem.size)
    residuals = [problem.residual(part, labels) for part in parts]
    chosen = min(range(len(parts)), key=residuals.__getitem__)
    images, residual = parts[chosen], residuals[chosen]
    if ensemble:
        if isinstance(problem.parametrisation, Rows):
            images = problem.parametrisation.pooled(parts, chosen, labels)
        else:
            images = torch.stack(parts).mean(dim=0)
        residual = problem.residual(images, labels)
    pixels = problem.parametrisation.pixels(images).clamp(0, 1).float().cpu()
    if fixed is not None:
        labelled = fixed.recovered or Reconstruction()
    else:
        assert isinstance(source, Joint)
        labelled = source.read(variables[1], problem.size)
    return Reconstruction(
        images=pixels,
        prior_alone=prior_alone,
        class_counts=labelled.class_counts,
        class_presence=labelled.class_presence,
        trace=_thinned(best.trace),
        residual=residual,
        seconds=seconds,
    )


def _thinned(trace: list[float]) -> tuple[float, ...]:
    """Keep some points of a curve, the last one among them."""
    if len(trace) <= TRACE:
        return tuple(trace)
    return (*trace[:: -(-len(trace) // TRACE)], trace[-1])
