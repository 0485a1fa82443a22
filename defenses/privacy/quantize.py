"""Fewer bits for every number that leaves the client.

Paper: Alistarh et al., QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding
    (NeurIPS 2017); Bernstein et al., signSGD (ICML 2018).
"""

import math

import torch
from torch import Generator, Tensor

from fedsim.core.interfaces import Defense
from fedsim.core.settings import one_of, switch, whole
from fedsim.core.types import Kind, Weights

METHODS = ("qsgd", "sign", "float16", "bfloat16")


class Quantize(Defense):
    """Rounds every number: at random to a few levels (QSGD), to its sign, or to a 16-bit float."""

    rescales = True
    sparse = True

    def __init__(self, *, method: str = "qsgd", levels: int = 16, error_feedback: bool = False) -> None:
        """Set the method; levels: of QSGD, between zero and a tensor's norm.

        error_feedback: what rounding took away is added to the client's next reply.
        """
        self.method = one_of("defense.quantize.method", method, METHODS)
        self.levels = whole("defense.quantize.levels", levels)
        sizes = {"qsgd": math.log2(2 * levels + 1), "sign": 1.0, "float16": 16.0, "bfloat16": 16.0}
        self.bits = sizes[method]
        self.keeps_rest = switch("defense.quantize.error_feedback", error_feedback)
        self.repeatable = method != "qsgd" and not error_feedback

    def on_reply(self, reply: Weights, kind: Kind, generator: Generator) -> Weights:
        """Quantise tensor by tensor."""
        return {name: self._round(tensor, generator) for name, tensor in reply.items()}

    def _round(self, tensor: Tensor, generator: Generator) -> Tensor:
        if self.method == "float16":
            return tensor.clamp(-65504, 65504).half().to(tensor.dtype)  # the largest of its range
        if self.method == "bfloat16":
            return tensor.bfloat16().to(tensor.dtype)
        if self.method == "sign":
            return torch.where(tensor < 0, -1.0, 1.0).to(tensor.dtype) * tensor.abs().mean()
        return qsgd(tensor, self.levels, generator)


def qsgd(tensor: Tensor, levels: int, generator: Generator) -> Tensor:
    """Round at random to multiples of norm / levels, with the tensor itself as expectation."""
    norm = tensor.norm()
    if float(norm) == 0:
        return tensor
    drawn = torch.rand(tensor.shape, generator=generator, dtype=tensor.dtype)
    rounded: Tensor = tensor.sign() * norm * (tensor.abs() / norm * levels + drawn).floor() / levels
    return rounded
