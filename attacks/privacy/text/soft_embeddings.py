"""A transformer that takes embeddings in place of tokens: what gradient matching of texts moves."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from fedsim.attacks.privacy.matching.parametrisations import Pixels
from fedsim.attacks.privacy.matching.priors import Penalty, Prior, Term
from fedsim.attacks.privacy.text.structure import probe_of
from fedsim.core.errors import FedsimError
from fedsim.core.inputs import Tokens
from fedsim.core.settings import number
from fedsim.core.types import Task


class _Lookup(TorchFunctionMode):
    """Shows the look-up of tokens to whoever asks, who may put other embeddings in its place."""

    def __init__(self, tokens: Tensor, found: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.tokens, self.found = tokens, found

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        arguments: Sequence[Any] = (),
        named: Mapping[str, Any] | None = None,
    ) -> Any:
        made = function(*arguments, **(named or {}))
        if function is functional.embedding:
            index, table = arguments[0], arguments[1] if len(arguments) > 1 else (named or {})["weight"]
            if index.shape == self.tokens.shape and bool((index == self.tokens).all()):
                return self.found(made, table)
        return made


def table_of(model: nn.Module, form: Tokens) -> tuple[Tensor, str | None]:
    """Return the embeddings that a model looks tokens up in, and the parameter's name, if it is one."""
    found = list[Tensor]()

    def keep(made: Tensor, table: Tensor) -> Tensor:
        found.append(table)
        return made

    probe = probe_of(form)
    with torch.no_grad(), _Lookup(probe, keep):
        model(probe)
    if not found:
        raise FedsimError(
            "expected a model that looks tokens up in a table of embeddings, got none. "
            "Remedy: model=text_encoder, text_decoder or huggingface."
        )
    named = (name for name, parameter in model.named_parameters() if parameter is found[0])
    return found[0].detach(), next(named, None)


class FromEmbeddings(nn.Module):
    """A model over embeddings (N, length, features + 1); the last feature says what is no padding."""

    table: Tensor

    def __init__(self, model: nn.Module, form: Tokens, table: Tensor) -> None:
        """Wrap a model, whose parameters keep their order."""
        super().__init__()
        self.model, self.padding = model, form.padding
        self.usual = int(probe_of(form)[0, 0])
        self.register_buffer("table", table, persistent=False)

    def forward(self, values: Tensor) -> Tensor:
        """Return the logits of texts with these embeddings."""
        shown = values[..., -1] > 0
        tokens = torch.where(shown, self.usual, self.padding)
        # Fused attention has no second derivative.
        with _Lookup(tokens, lambda made, table: values[..., :-1]), sdpa_kernel(SDPBackend.MATH):
            logits: Tensor = self.model(tokens)
        return logits


class Embeddings(Pixels):
    """Embeddings in units of their table's deviation; those of marks stay as they are."""

    table: Tensor
    lengths: Tensor

    def __init__(self, form: Tokens, table: Tensor, lengths: Tensor) -> None:
        """Prepare for texts with so many tokens, marks included."""
        nn.Module.__init__(self)
        self.form, self.shape = form, (form.length, table.shape[1])
        self.register_buffer("table", table)
        self.register_buffer("lengths", lengths)
        self.register_buffer("mean", torch.zeros(1))
        self.register_buffer("std", table.std())

    def point(self, images: Tensor) -> Tensor:
        """Return the point that stands for embeddings."""
        return images.clone()

    def images(self, point: Tensor) -> Tensor:
        """Return the embeddings that a point stands for, with those of marks and padding in their places."""
        marks = self.marks()
        known = functional.embedding(marks.clamp(min=0), self.table).to(point) / self.std
        return torch.where(marks[..., None] >= 0, known, point.view(-1, *self.shape))

    def pixels(self, images: Tensor) -> Tensor:
        """Return what the model takes: embeddings, and what is no padding."""
        shown = torch.arange(self.form.length, device=images.device) < self.lengths[:, None]
        return torch.cat([images * self.std, shown[..., None].to(images)], dim=-1)

    def keep_inside(self, point: Tensor) -> None:
        """Do nothing: embeddings have no box."""

    def marks(self) -> Tensor:
        """Return the tokens that everybody knows (K, length); -1: a place of a text's own."""
        places = torch.arange(self.form.length, device=self.lengths.device)
        marks = torch.full((len(self.lengths), self.form.length), -1, device=places.device)
        if self.form.begin is not None:
            marks[:, 0] = self.form.begin
        if self.form.end is not None:
            marks[places == self.lengths[:, None] - 1] = self.form.end
        marks[places >= self.lengths[:, None]] = self.form.padding
        return marks

    def nearest(self, point: Tensor, words: Tensor) -> Tensor:
        """Return texts (K, length): of each place the word whose embedding points the same way."""
        found = functional.normalize(point.view(-1, *self.shape), dim=2)
        table = functional.normalize(self.table[words].to(found), dim=1)
        marks = self.marks()
        return torch.where(marks >= 0, marks, words[(found @ table.T).argmax(dim=2)])

    def embedded(self, tokens: Tensor) -> Tensor:
        """Return the point that stands for texts."""
        return self.point(functional.embedding(tokens, self.table) / self.std)


class UsualLength(Prior):
    """Embeddings are on average as long as those of the vocabulary.

    Paper: Balunovic et al., LAMP: Extracting Text from Gradients with Language Model Priors (NeurIPS 2022).
    """

    def __init__(self, *, weight: float = 1.0) -> None:
        """Set the weight of the penalty."""
        self.weight = number("attack.priors.weight", weight, least=0)

    def on(self, model: nn.Module, task: Task) -> Penalty:
        """Return the squared gap between mean lengths, in units of the vocabulary's."""
        if not isinstance(model, FromEmbeddings):
            raise FedsimError("attack.priors: UsualLength is for texts. Remedy: attack=lamp.")
        usual = (model.table / model.table.std()).norm(dim=1).mean()

        def penalty(images: Tensor, done: float = 1.0) -> Term:
            gap = images.norm(dim=-1).mean() / usual.to(images) - 1
            value = self.weight * gap.square()
            return float(value.detach()), value, None

        return penalty
