"""What encoders and decoders of texts are made of."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedsim.core.errors import FedsimError
from fedsim.core.inputs import Tokens
from fedsim.core.settings import switch, whole
from fedsim.core.types import Task


def tokens_of(task: Task, name: str) -> Tokens:
    """Return what a task's texts are, or refuse a task without any."""
    if not isinstance(task.inputs, Tokens):
        raise FedsimError(
            f"model {name} takes tokens, and this data has none. "
            "Remedy: data=shakespeare_small or text_lines, or another model."
        )
    return task.inputs


def check_size(depth: int, width: int, heads: int) -> None:
    """Refuse a transformer that cannot be."""
    whole("model.depth", depth)
    if whole("model.width", width) % whole("model.heads", heads):
        raise FedsimError(f"model: expected heads that divide the width, got width={width}, heads={heads}")


def fix_frozen(model: nn.Module) -> None:
    """Make what is not trained a part of the model that is never sent: parameters become buffers."""
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if not parameter.requires_grad:
                delattr(module, name)
                module.register_buffer(name, parameter.data)


def with_lora(model: nn.Module, rank: int) -> nn.Module:
    """Return a model of blocks of whose weights nothing is trained but low-rank factors; 0: as it is.

    Paper: Hu et al., LoRA: Low-Rank Adaptation of Large Language Models (ICLR 2022): queries and values.
    """
    if whole("model.lora", rank, 0):
        model.requires_grad_(requires_grad=False)
        for block in [module for module in model.modules() if isinstance(module, Block)]:
            block.query, block.value = LowRank(block.query, rank), LowRank(block.value, rank)
        fix_frozen(model)
    return model


class LowRank(nn.Module):
    """A linear layer that stays, beside two thin ones that are trained; the second begins at zero."""

    def __init__(self, layer: nn.Module, rank: int) -> None:
        super().__init__()
        assert isinstance(layer, nn.Linear)
        self.layer = layer
        self.down = nn.Linear(layer.in_features, rank, bias=False)
        self.up = nn.Linear(rank, layer.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, values: Tensor) -> Tensor:
        """Return the sum of both ways."""
        changed: Tensor = self.layer(values) + self.up(self.down(values))
        return changed


class Embed(nn.Module):
    """A learned vector for each token and for each place, added up."""

    tokens: Tensor
    places: Tensor

    def __init__(self, form: Tokens, width: int, *, trained: bool) -> None:
        super().__init__()
        self.padding = form.padding
        tokens = torch.randn(len(form.vocabulary), width) * 0.02
        places = torch.randn(form.length, width) * 0.02
        for name, table in (("tokens", tokens), ("places", places)):
            if switch("model.train_embeddings", trained):
                self.register_parameter(name, nn.Parameter(table))
            else:  # everybody has it, nobody trains or sends it
                self.register_buffer(name, table)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return vectors (N, length, width)."""
        return functional.embedding(tokens.long(), self.tokens) + self.places[: tokens.shape[1]]


class Block(nn.Module):
    """Attention, then two layers on each place, both beside a shortcut."""

    def __init__(self, width: int, heads: int, *, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.query: nn.Module = nn.Linear(width, width)
        self.key: nn.Module = nn.Linear(width, width)
        self.value: nn.Module = nn.Linear(width, width)
        self.project = nn.Linear(width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.expand, self.contract = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, values: Tensor, hidden: Tensor) -> Tensor:
        """Return the block's output; hidden (N, length): places that nobody looks at."""
        if self.causal:  # norms before layers, as in GPT-2
            values = values + self._attend(self.norm1(values), hidden)
            return values + self._feed(self.norm2(values))
        values = self.norm1(values + self._attend(values, hidden))  # behind them, as in BERT
        done: Tensor = self.norm2(values + self._feed(values))
        return done

    def _attend(self, values: Tensor, hidden: Tensor) -> Tensor:
        number, length, width = values.shape
        query, key, value = (
            layer(values).view(number, length, self.heads, -1).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        mask = ~hidden[:, None, None, :].expand(-1, 1, length, -1)
        if self.causal:  # padding stands behind the text: nobody sees it anyway, and no row may be empty
            mask = torch.ones(length, length, dtype=torch.bool, device=values.device).tril()
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        projected: Tensor = self.project(mixed.transpose(1, 2).reshape(number, length, width))
        return projected

    def _feed(self, values: Tensor) -> Tensor:
        fed: Tensor = self.contract(functional.gelu(self.expand(values)))
        return fed
