"""The searches by slopes: signed or plain Adam with a schedule, L-BFGS."""

import math
from collections.abc import Sequence

import torch

from fedsim.attacks.privacy.matching.objectives import Objective
from fedsim.attacks.privacy.matching.priors import Prior
from fedsim.attacks.privacy.matching.problem import Problem, Variables
from fedsim.attacks.privacy.matching.watch import Watch
from fedsim.core.settings import number, one_of, whole

BETAS = (0.9, 0.999)  # Adam's memory of slopes and of their squares


class Optimiser:
    """A way to minimise a problem's objective."""

    iterations: int
    copies: int = 4  # of the variables that it keeps

    def check(self, objective: Objective, priors: Sequence[Prior], *, terms: bool = False) -> None:
        """Complain about parts that this search cannot take into account; terms: other than priors."""

    def minimise(self, problem: Problem, variables: Variables, watch: Watch) -> None:
        """Search from `variables`, showing every step to `watch`, which keeps the best."""
        raise NotImplementedError


class Adam(Optimiser):
    """Adam, optionally on the sign of the slopes, with a decaying step.

    Papers: Geiping et al. (NeurIPS 2020) for signs and steps; the soft sign is tanh, softer over time.
    """

    def __init__(
        self,
        *,
        iterations: int = 1500,
        step: float = 0.1,
        sign: str = "hard",
        decay: str = "steps",
        warmup: int = 0,
        box: bool = True,
        averaged: float = 0.0,
    ) -> None:
        """Set the number of iterations, the first step, and how slopes and step are shaped.

        sign: `none`, `hard`, `soft`. decay: `none`, `steps` (a tenth at 3/8, 5/8, 7/8), `cosine`.
        box: keep pixels in [0, 1]. averaged: the share of the iterations, the last ones, whose mean is the
        result: with a prior that draws noise, nearer to the mean of all images that would do.
        """
        self.iterations = whole("attack.optimiser.iterations", iterations)
        self.step = number("attack.optimiser.step", step, above=0)
        self.sign = one_of("attack.optimiser.sign", sign, ("none", "hard", "soft"))
        self.decay = one_of("attack.optimiser.decay", decay, ("none", "steps", "cosine"))
        self.warmup = whole("attack.optimiser.warmup", warmup, 0)
        self.box = box
        self.averaged = number("attack.optimiser.averaged", averaged, least=0, most=1)

    def minimise(self, problem: Problem, variables: Variables, watch: Watch) -> None:
        """Walk down."""
        # Written out: on one or two small tensors, torch.optim.Adam costs more than the arithmetic.
        means = [torch.zeros_like(variable) for variable in variables]
        squares = [torch.zeros_like(variable) for variable in variables]
        middle, begin = list[torch.Tensor](), round((1 - self.averaged) * self.iterations)
        for iteration in range(self.iterations):
            done = iteration / self.iterations
            value, slopes = problem.value_and_slopes(variables, done)
            watch.see(value, variables)
            if self.sign == "hard":
                slopes[0].sign_()  # of the images alone: label vectors have no box to stay in
            elif self.sign == "soft":
                slopes[0].mul_(1 - done).tanh_().div_(1 - done)
            one, two = 1 - BETAS[0] ** (iteration + 1), 1 - BETAS[1] ** (iteration + 1)
            step = self.step * self._factor(done, iteration) / one
            with torch.no_grad():
                for variable, slope, mean, square in zip(variables, slopes, means, squares, strict=True):
                    mean.lerp_(slope, 1 - BETAS[0])
                    square.mul_(BETAS[1]).addcmul_(slope, slope, value=1 - BETAS[1])
                    variable.addcdiv_(mean, square.div(two).sqrt_().add_(1e-8), value=-step)
                if self.box:
                    problem.parametrisation.keep_inside(variables[0])
                if iteration >= begin:
                    middle = middle or [variable.detach().clone() for variable in variables]
                    for mean, variable in zip(middle, variables, strict=True):
                        mean.lerp_(variable, 1 / (iteration - begin + 1))
        if middle:
            watch.settle(problem.value_and_slopes(middle)[0], middle)
            return
        watch.see(problem.value_and_slopes(variables)[0], variables)

    def _factor(self, done: float, iteration: int) -> float:
        factor = min(1.0, (iteration + 1) / (self.warmup + 1))
        if self.decay == "steps":
            factor *= 0.1 ** sum(done >= share for share in (3 / 8, 5 / 8, 7 / 8))
        elif self.decay == "cosine":
            factor *= (1 + math.cos(math.pi * done)) / 2
        return factor


class LBFGS(Optimiser):
    """L-BFGS with a strong Wolfe line search: few, good steps on smooth problems.

    Paper: Zhu et al., Deep Leakage from Gradients (NeurIPS 2019).
    """

    def __init__(self, *, iterations: int = 300, history: int = 50) -> None:
        """Set the number of evaluations of the objective, and how many steps the curvature remembers."""
        self.iterations = whole("attack.optimiser.iterations", iterations)
        self.history = whole("attack.optimiser.history", history)
        self.copies = 2 * self.history + 4

    def minimise(self, problem: Problem, variables: Variables, watch: Watch) -> None:
        """Walk down."""
        optimiser = torch.optim.LBFGS(
            variables,
            max_iter=self.iterations,
            max_eval=self.iterations,
            history_size=self.history,
            tolerance_grad=1e-14,
            tolerance_change=1e-16,
            line_search_fn="strong_wolfe",
        )

        def evaluate() -> float:
            value, slopes = problem.value_and_slopes(variables)
            watch.see(value, variables)
            for variable, slope in zip(variables, slopes, strict=True):
                variable.grad = slope
            return value

        optimiser.step(evaluate)  # type: ignore[no-untyped-call]
