"""How many examples of each class a batch holds: iLRG to the letter of its authors' program.

What leaks: the count of every class, and class-wise mean embeddings and probabilities.
Paper: Ma et al., Instance-wise Batch Label Restoration via Gradients in Federated Learning (ICLR 2023).
    To compare with its figures; `ilrg` restores more. Counts are rounded one by one, need not sum to the
    batch size, and are none where they exceed it. Powers of ten of a quotient are capped.
Assumes: softmax cross-entropy, a biased linear last layer, gradients averaged over the batch, whose size is
    disclosed; embeddings of a class lie close together.
Fails: on trained models, with many examples of each class and on sparsified gradients, none of it gently.
"""

import time
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedsim.attacks.privacy.labels.last_layer import LastLayer, named_classes, received_layer
from fedsim.core.errors import FedsimError
from fedsim.core.interfaces import Attack
from fedsim.core.types import Observation, Reconstruction, Task
from fedsim.models.last_linear import last_linear_name

LARGEST_POWER = 10  # of ten, in a quotient: the authors' cap
SMALLEST = 1e-15  # singular value that counts, of the largest: numpy's pinv


class ILRGPaper(Attack):
    """Algorithm 1 as published: quotients of any size, a pseudo-inverse, every count rounded by itself."""

    def __init__(self, *, classes: Attack | None = None) -> None:
        """Set an attack whose class presence drops the unknowns and equations of all other classes."""
        self.classes = classes

    def check(self, model: nn.Module, task: Task) -> None:
        """Refuse a model that does not end in a linear layer with a bias."""
        last_linear_name(model, task.input_shape)

    def run(self, model: nn.Module, task: Task, observations: Sequence[Observation]) -> Reconstruction:
        """Restore the class counts of the observed batch."""
        started = time.perf_counter()
        layer = received_layer(model, task, observations[-1])
        if layer.num_examples is None:
            raise FedsimError(
                "ilrg_paper needs the number of examples, and the clients do not disclose it. "
                "Remedy: add num_examples to federation.disclose, or attack=ilrg, which estimates it."
            )
        present = torch.ones(task.num_classes, dtype=torch.bool)
        if self.classes is not None:
            present = named_classes(self.classes, model, task, observations)
        embeddings = capped_quotients(layer)
        probabilities = single_probabilities(embeddings, layer)
        proportions, residual = least_squares(
            probabilities[present][:, present].double(), layer.bias_gradient[present]
        )
        counts = torch.zeros(task.num_classes, dtype=torch.int64)
        found = (proportions * layer.num_examples).round()
        counts[present] = torch.where((found > 0) & (found <= layer.num_examples), found, 0).long()
        return Reconstruction(
            class_counts=counts,
            class_presence=counts > 0,
            embeddings=embeddings.float(),
            probabilities=probabilities,
            residual=residual,
            seconds=time.perf_counter() - started,
        )


def capped_quotients(layer: LastLayer) -> Tensor:
    """Return e_i = G_i / g_i (C, m), digits divided by digits and powers of ten within 10^-10 to 10^10.

    Where g_i is zero the authors divide by 1e-64, which the cap makes 10^10 times the digits of G_i.
    """
    digits, power = scientific(layer.weight_gradient)
    bias_digits, bias_power = scientific(layer.bias_gradient[:, None])
    bias_power = torch.where(bias_digits == 0, -64.0, bias_power)
    bias_digits = torch.where(bias_digits == 0, 1.0, bias_digits)
    return digits / bias_digits * 10 ** (power - bias_power).clamp(-LARGEST_POWER, LARGEST_POWER)


def scientific(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the digits of scientific notation, seven of them as the authors print them, and the powers."""
    power = torch.where(values == 0, 1.0, values.abs()).log10().floor()
    return (values / 10**power).round(decimals=6), power


def single_probabilities(embeddings: Tensor, layer: LastLayer) -> Tensor:
    """Return the softmaxes of embeddings (C, C), in float32 as the authors' model computes them."""
    return torch.addmm(layer.bias.float(), embeddings.float(), layer.weight.T.float()).softmax(dim=1)


def least_squares(probabilities: Tensor, bias_gradient: Tensor) -> tuple[Tensor, float]:
    """Solve equation (7) for the classes' proportions by the pseudo-inverse; return the residual, too.

    On trained models the system is nearly singular, and what is cut off decides what comes out: an iteration
    that stops at a tolerance, as `ilrg` uses, has another answer.
    """
    classes = len(bias_gradient)
    system = torch.cat([torch.ones(1, classes).double(), probabilities.T - torch.eye(classes).double()])
    wanted = torch.cat([torch.ones(1).double(), bias_gradient])
    proportions = torch.linalg.pinv(system, rtol=SMALLEST) @ wanted
    return proportions, float(torch.linalg.vector_norm(system @ proportions - wanted))
