"""What the gradients of embedding tables show: only rows that were looked up are not zero."""

from dataclasses import dataclass

from torch import Tensor, nn

from fedsim.attacks.privacy.text.structure import layers
from fedsim.core.inputs import Tokens
from fedsim.core.types import Weights

CLEAR = 0.5  # of the vocabulary: where more rows are changed, noise or a shared output layer hides the words


@dataclass(frozen=True, eq=False)
class Tables:
    """Gradients of the tables of tokens and of places."""

    tokens: Tensor  # (vocabulary, features)
    places: Tensor | None  # (length, features); None: the model has no such table, or does not train it
    present: Tensor  # tokens whose rows are not zero, without padding


def tables_of(model: nn.Module, form: Tokens, received: Weights) -> Tables | None:
    """Return the gradients of the embeddings, if they are trained and show the words of a batch."""
    linear = {f"{name}.weight" for name, _ in layers(model)}
    rows = {name: tensor for name, tensor in received.items() if tensor.ndim == 2 and name not in linear}
    tokens = next((tensor for tensor in rows.values() if len(tensor) == len(form.vocabulary)), None)
    if tokens is None:
        return None
    changed = tokens.abs().amax(dim=1) > 0
    changed[form.padding] = False
    if not 0 < int(changed.sum()) < CLEAR * len(changed):
        return None
    fitting = (
        tensor
        for tensor in rows.values()
        if tensor is not tokens and len(tensor) >= form.length and tensor.shape[1] == tokens.shape[1]
    )
    places = next(fitting, None)
    return Tables(
        tokens=tokens,
        places=None if places is None or not bool(places.any()) else places[: form.length],
        present=changed.nonzero()[:, 0],
    )
