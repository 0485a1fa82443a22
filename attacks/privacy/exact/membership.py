"""Which points of a linear layer's input space give activations in the next layer's: peeling's search."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from fedsim.attacks.privacy.exact.behind import Behind
from fedsim.attacks.privacy.exact.newton import descend
from fedsim.attacks.privacy.exact.search import Loss, relative
from fedsim.attacks.privacy.exact.spaces import spaces
from fedsim.attacks.privacy.matching.linear_layers import Between, row_space

Activation = Callable[[Tensor], Tensor]


class Membership:
    """Points of the first layer's input space, and how far their activations are from the second's."""

    def __init__(
        self,
        first: Tensor,
        second: Tensor,
        weight: Tensor,
        act: Between,
        ranks: tuple[int, int],
        ones: Tensor | None = None,
    ) -> None:
        """Read both spaces, of these ranks, from the gradients; ones: as for `spaces`."""
        self.first = spaces(first, weight, ranks[0], ones=ones)
        self.goal = row_space(second, ranks[1])
        self.act = act

    def loss(self) -> Loss:
        """Return how much of a point's activations lies beside the second space, squared and relative."""
        first, goal = self.first.to(torch.float32), self.goal.float()

        def loss(points: Tensor, width: Tensor | None) -> Tensor:
            outputs = with_one(self.act(first.outputs(points), width))
            return relative(outputs - (outputs @ goal.T) @ goal, outputs)

        return loss

    def loss_with_errors(self, behind: Behind, columns: tuple[Tensor, Tensor], labels: Tensor) -> Loss:
        """Return the same, with how much of the errors at both layers lies beside their column spaces.

        Errors move more than activations from one local step to the next, so inputs of later steps, which
        are nearly members, draw fewer starts to them.
        """
        inside, first = self.loss(), self.first.to(torch.float32)
        act, weight, bias = behind.to(torch.float32).steps[0]
        rest = Behind(steps=behind.to(torch.float32).steps[1:])
        one, two = (side.float() for side in columns)

        def loss(points: Tensor, width: Tensor | None) -> Tensor:
            with torch.enable_grad():
                outputs = first.outputs(points)
                next_outputs = functional.linear(act(outputs, width), weight, bias)
                next_errors = rest.errors(next_outputs, labels, width)
                errors = torch.autograd.grad(next_outputs, outputs, next_errors, create_graph=True)[0]
            beside = relative(errors - (errors @ one) @ one.T, errors)
            return (
                inside(points, width)
                + beside
                + relative(next_errors - (next_errors @ two) @ two.T, next_errors)
            )

        return loss

    def descend(self, points: Tensor, steps: int) -> tuple[Tensor, Tensor]:
        """Take damped Gauss-Newton steps from all points at once; return them with relative residuals."""
        return descend(self._normal_equations, points, steps)

    def _normal_equations(self, points: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        values = self.first.outputs(points)
        outputs = with_one(self.act(values))
        gaps = outputs - (outputs @ self.goal.T) @ self.goal
        jacobians = self.first.slant * derivative(self.act, values)[:, None, :]
        inside = jacobians @ self.goal[:, :-1].T
        squares = jacobians @ jacobians.mT - inside @ inside.mT
        slopes = (jacobians @ gaps[:, :-1, None])[:, :, 0]
        return gaps.square().sum(dim=1) / outputs.square().sum(dim=1), squares, slopes


def with_one(rows: Tensor) -> Tensor:
    """Append a 1 to every row: the input of the bias."""
    return torch.cat([rows, rows.new_ones(len(rows), 1)], dim=1)


def derivative(act: Activation, values: Tensor) -> Tensor:
    """Return the derivative of an elementwise activation."""
    values = values.detach().requires_grad_()
    with torch.enable_grad():
        return torch.autograd.grad(act(values).sum(), values)[0]
