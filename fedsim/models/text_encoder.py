"""A small encoder of texts: attention in both directions, the mean over all tokens classified.

Paper: Devlin et al., BERT (NAACL 2019).
"""

import torch
from torch import Tensor, nn

from fedsim.core.errors import FedsimError
from fedsim.core.inputs import Tokens
from fedsim.core.types import Task
from fedsim.models.text_layers import Block, Embed, check_size, tokens_of, with_lora


def text_encoder(
    task: Task,
    *,
    depth: int = 2,
    width: int = 192,
    heads: int = 4,
    train_embeddings: bool = True,
    lora: int = 0,
) -> nn.Module:
    """Encoder transformer over tokens that tells the class of a text; embeddings trained, or fixed."""
    form = tokens_of(task, "text_encoder")
    check_size(depth, width, heads)
    if form.continued:
        raise FedsimError(
            "model text_encoder sees the next tokens that it is to tell. "
            "Remedy: model=text_decoder, or data.goal=class."
        )
    return with_lora(Encoder(form, task.num_classes, depth, width, heads, train_embeddings), lora)


class Encoder(nn.Module):
    """Embeddings, blocks, the mean over what is no padding."""

    def __init__(
        self, form: Tokens, num_classes: int, depth: int, width: int, heads: int, trained: bool
    ) -> None:
        super().__init__()
        self.embed = Embed(form, width, trained=trained)
        self.norm = nn.LayerNorm(width, eps=1e-12)  # as in BERT: embeddings are small
        self.blocks = nn.ModuleList(Block(width, heads, causal=False) for _ in range(depth))
        self.output = nn.Linear(width, num_classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits (N, classes)."""
        hidden = tokens == self.embed.padding
        hidden = hidden & ~hidden.all(dim=1, keepdim=True)  # an empty text shows its padding
        values = self.norm(self.embed(tokens))
        for block in self.blocks:
            values = block(values, hidden)
        seen = (~hidden)[..., None].to(values)
        logits: Tensor = self.output(torch.sum(values * seen, dim=1) / seen.sum(dim=1))
        return logits
