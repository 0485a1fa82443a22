"""Which layers of a model show its tokens: found by what they look at, not by their names."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedsim.core.errors import FedsimError
from fedsim.core.inputs import Tokens
from fedsim.core.types import Weights

CONTEXTUAL = 6  # layers behind the first attention that are looked at
PIECE, WIDEST = 2**24, 4096  # numbers of inputs that are held at once; of one token


class _Enough(Exception):
    """All that was wanted was seen: the rest of the model need not run."""


@dataclass(frozen=True, kw_only=True)
class Structure:
    """Layers by what enters them: one token at its place, or a token that has seen others."""

    local: tuple[tuple[str, ...], ...]  # layers that get the same, in groups
    contextual: tuple[str, ...]  # in the order of the model
    causal: bool  # a place sees none behind it
    norm: str | None  # the layer norm that gives the first group its inputs


def structure_of(model: nn.Module, form: Tokens, received: Weights) -> Structure:
    """Find the layers with a gradient that tells something, by changing one token of a probe."""
    names = [name for name, _ in layers(model) if bool(received.get(f"{name}.weight", torch.zeros(1)).any())]
    probe = probe_of(form)
    other = probe.clone()
    middle = form.length // 2
    other[0, middle] = probe[0, middle] - 1
    seen, order = _entering(model, names, probe)
    changed, _ = _entering(model, names, other)
    local, contextual, causal = dict[int, list[str]](), list[str](), True
    for name in order:
        if seen[name].ndim != 3 or seen[name].shape[1] != form.length:
            continue
        moved = (seen[name] - changed[name]).abs().amax(dim=(0, 2)) > 0
        if moved.sum() <= 1:
            local.setdefault(id(seen[name]), []).append(name)
        elif len(contextual) < CONTEXTUAL:
            contextual.append(name)
            causal = causal and not bool(moved[:middle].any())
    if not local or not contextual:
        raise FedsimError(
            "expected a transformer of tokens with two layers or more, and no gradient of zeros. "
            "Remedy: model=text_encoder, text_decoder or huggingface."
        )
    groups = tuple(tuple(group) for group in local.values())
    norm = _norm_before(model, groups[0][0], probe)
    return Structure(local=groups, contextual=tuple(contextual), causal=causal, norm=norm)


def _norm_before(model: nn.Module, layer: str, probe: Tensor) -> str | None:
    """Return the layer norm whose output enters a layer."""
    made = dict[int, str]()

    def hook(name: str) -> torch.utils.hooks.RemovableHandle:
        def remember(module: nn.Module, inputs: object, output: Tensor) -> None:
            made[output.data_ptr()] = name

        return model.get_submodule(name).register_forward_hook(remember)

    handles = [hook(name) for name, module in model.named_modules() if isinstance(module, nn.LayerNorm)]
    try:
        entered = _entering(model, [layer], probe)[0][layer]
    finally:
        for handle in handles:
            handle.remove()
    return made.get(entered.data_ptr())


def layers(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the linear layers of a model; GPT-2's are called Conv1D and turned around."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D":
            yield name, module


def gradient_of(model: nn.Module, names: Sequence[str], received: Weights) -> Tensor:
    """Return the gradients of layers that get the same inputs, one below the other (outputs, features)."""
    parts = []
    for name in names:
        part = received[f"{name}.weight"]
        parts.append(part if isinstance(model.get_submodule(name), nn.Linear) else part.mT)
    return torch.cat(parts)


def entering(model: nn.Module, name: str, sequences: Tensor) -> Tensor:
    """Return what enters a layer at every place of sequences (N, length, features)."""
    size = max(1, PIECE // (sequences.shape[1] * WIDEST))
    return torch.cat([_entering(model, [name], part)[0][name] for part in torch.split(sequences, size)])


def _entering(
    model: nn.Module, names: Sequence[str], sequences: Tensor
) -> tuple[dict[str, Tensor], list[str]]:
    seen, order = dict[str, Tensor](), list[str]()
    with _listening(model, names, seen, order), torch.no_grad(), suppress(_Enough):
        model(sequences)
    return seen, order


@contextmanager
def _listening(
    model: nn.Module, names: Sequence[str], seen: dict[str, Tensor], order: list[str]
) -> Iterator[None]:
    def hook(name: str) -> torch.utils.hooks.RemovableHandle:
        def remember(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            if name not in seen:
                order.append(name)
                seen[name] = inputs[0]
            if len(seen) == len(names):
                raise _Enough

        return model.get_submodule(name).register_forward_pre_hook(remember)

    handles = [hook(name) for name in names]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def probe_of(form: Tokens) -> Tensor:
    """Return one sequence without padding."""
    usual = [token for token in range(len(form.vocabulary)) if token not in form.special]
    places = torch.arange(form.length) * 7 % len(usual)
    return torch.tensor(usual)[places][None]
