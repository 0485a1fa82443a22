"""Sentences of an encoder one after the other: what is found is taken off the gradient."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedsim.attacks.privacy.text.attention import Attention
from fedsim.attacks.privacy.text.companions import Errors, Pairs, errors_of, sentence_of
from fedsim.core import progress
from fedsim.core.inputs import Tokens
from fedsim.core.types import Weights

GONE = 1e-4  # of a token's errors: less is what rounding leaves of a text that was taken off
EXPLAINED = 1e-3  # of a token's errors that the label of its text may leave over
MOST_CLASSES = 64  # labels that are tried


def peeled(
    model: nn.Module,
    form: Tokens,
    attention: Attention,
    pairs: Pairs,
    received: Weights,
    *,
    classes: int,
    wanted: int,
    doubt: Callable[[Tensor], float | None],
) -> dict[tuple[int, ...], float]:
    """Return the texts that the first attention shows and a deeper layer certifies, and their doubts.

    doubt: how far a text is from fitting that layer; None: it does not.
    """
    found, rest = dict[tuple[int, ...], float](), dict(received)
    with progress.bar("texts", wanted) as advance:
        while len(found) < wanted and len(pairs.tokens):
            new, explained = list[tuple[Tensor, Errors]](), set[int]()
            before = list(errors_of(pairs, attention, rest))
            by_token = {errors.token: errors for errors in before}
            for errors in before:
                if errors.token in explained or len(found) >= wanted:
                    continue
                numbers = sentence_of(pairs, errors, by_token, form.length, form.end)
                if numbers is None:
                    continue
                text = torch.full((form.length,), form.padding)
                text[: len(numbers)] = pairs.tokens[numbers]
                key, doubted = tuple(text.tolist()), doubt(text)
                if doubted is None or key in found:
                    continue
                found[key] = doubted
                explained |= set(key)
                new.append((text, errors))
                advance(len(found))
            rest, taken = _without(model, attention, new, rest, classes)
            if not taken:
                break
            pairs = pairs.only(~torch.isin(pairs.tokens, _gone(attention, before, rest)))
    return found


def _without(
    model: nn.Module,
    attention: Attention,
    new: Sequence[tuple[Tensor, Errors]],
    rest: dict[str, Tensor],
    classes: int,
) -> tuple[dict[str, Tensor], int]:
    """Return the gradient without that of some texts, and of how many a label explains the errors.

    Nobody has to tell the learning rate or how many examples there are: one token's errors give the factor.
    """
    taken = 0
    for text, errors in new:
        best: tuple[float, float, int] | None = None
        for label in range(classes if classes <= MOST_CLASSES else 0):
            own = _gradient(model, text, label, (attention.query, attention.key))
            told = _shares(own, attention, errors.direction)
            factor = float((told * errors.shares).sum() / told.square().sum().clamp(min=1e-300))
            left = float((errors.shares - factor * told).norm() / errors.shares.norm())
            best = min(best or (2.0, 0.0, 0), (left, factor, label))
        if best is None or best[0] > EXPLAINED:
            continue
        whole = _gradient(model, text, best[2], None)
        rest = {name: rest[name] - best[1] * whole[name].to(rest[name]) for name in rest}
        taken += 1
    return rest, taken


def _gradient(model: nn.Module, text: Tensor, label: int, layers: Sequence[str] | None) -> Weights:
    """Return the gradient of one text in float64, of some layers' weights or of everything."""
    named = dict(model.named_parameters())
    if layers is not None:
        named = {f"{layer}.weight": named[f"{layer}.weight"] for layer in layers}
    with torch.enable_grad():
        loss = functional.cross_entropy(model(text[None]), torch.tensor([label]))
        parts = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    return {
        name: torch.zeros_like(tensor) if part is None else part
        for (name, tensor), part in zip(named.items(), parts, strict=True)
    }


def _shares(gradient: Weights, attention: Attention, direction: Tensor) -> Tensor:
    parts = [gradient[f"{name}.weight"].double() @ direction for name in (attention.query, attention.key)]
    return torch.cat([part.view(-1, attention.head) for part in parts])


def _gone(attention: Attention, before: Sequence[Errors], rest: Weights) -> Tensor:
    """Return the tokens to which nothing comes back any more."""
    gone = [
        errors.token
        for errors in before
        if float(_shares(rest, attention, errors.direction).norm()) <= GONE * float(errors.shares.norm())
    ]
    return torch.tensor(gone, dtype=torch.int64)
