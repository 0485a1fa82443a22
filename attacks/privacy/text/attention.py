"""Which layer asks, which answers, and which units are one head: found by what a shift of them does."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedsim.attacks.privacy.text.structure import entering, probe_of
from fedsim.core.inputs import Tokens

SHIFT = 3.0  # times the size of a layer's output: enough to move attention, too little to saturate it
MOVED = 1e-4  # of the largest context: less is rounding


@dataclass(frozen=True, kw_only=True)
class Attention:
    """The first attention: its layers by name, and the units of a head, which follow one another."""

    query: str
    key: str
    head: int


def attention_of(model: nn.Module, form: Tokens, group: Sequence[str], contexts: str) -> Attention | None:
    """Return the first attention of a model; None: it is of another kind.

    group: layers that get the embedded tokens; contexts: the layer that gets what heads have mixed.
    A query moves the context of its own place alone; a key that of others, but not where all keys move alike.
    """
    probe = probe_of(form)
    plain = entering(model, contexts, probe)[0]
    width = plain.shape[1]

    def moved(layer: str, places: slice, units: slice) -> Tensor:
        with _shifted(model.get_submodule(layer), places, units):
            other = entering(model, contexts, probe)[0]
        far: Tensor = (other - plain).abs() > MOVED * plain.abs().max()
        return far

    everything, second = slice(None), slice(1, 2)
    query = key = None
    for layer in group:
        one = moved(layer, second, everything).any(dim=1)
        if bool(one[1]) and int(one.sum()) == 1:
            query = layer
        elif bool(one.any()) and not bool(moved(layer, everything, everything).any()):
            key = layer
    if query is None or key is None:
        return None
    first = moved(query, everything, slice(0, 1)).any(dim=0)
    head = int(first.sum())
    parameters = dict(model.named_parameters())
    sizes = {len(parameters[f"{name}.weight"]) for name in (query, key)}
    if not head or width % head or not bool(first[:head].all()) or sizes != {width}:
        return None
    return Attention(query=query, key=key, head=head)


@contextmanager
def _shifted(layer: nn.Module, places: slice, units: slice) -> Iterator[None]:
    def shift(module: nn.Module, inputs: object, output: Tensor) -> Tensor:
        changed = output.clone()
        steps = torch.linspace(0.5, 1, output.shape[2])[units].to(output)
        changed[:, places, units] += SHIFT * output.std() * steps
        return changed

    handle = layer.register_forward_hook(shift)
    try:
        yield
    finally:
        handle.remove()
