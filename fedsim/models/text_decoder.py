"""A small decoder of texts: attention to earlier places, the next token told at every place.

Paper: Radford et al., Language Models are Unsupervised Multitask Learners (2019): norms before layers.
"""

import torch
from torch import Tensor, nn

from fedsim.core.inputs import Tokens
from fedsim.core.types import Task
from fedsim.models.text_layers import Block, Embed, check_size, tokens_of, with_lora


def text_decoder(
    task: Task,
    *,
    depth: int = 2,
    width: int = 384,
    heads: int = 6,
    train_embeddings: bool = True,
    lora: int = 0,
) -> nn.Module:
    """Decoder transformer over tokens: the next token at every place, or the class by the last one."""
    form = tokens_of(task, "text_decoder")
    check_size(depth, width, heads)
    return with_lora(Decoder(form, task.num_classes, depth, width, heads, train_embeddings), lora)


class Decoder(nn.Module):
    """Embeddings, blocks, a norm, and logits: (N, vocabulary, length), or (N, classes) of the last token."""

    def __init__(
        self, form: Tokens, num_classes: int, depth: int, width: int, heads: int, trained: bool
    ) -> None:
        super().__init__()
        self.continued = form.continued
        self.embed = Embed(form, width, trained=trained)
        self.blocks = nn.ModuleList(Block(width, heads, causal=True) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.output = nn.Linear(width, num_classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits."""
        hidden = tokens == self.embed.padding
        values = self.embed(tokens)
        for block in self.blocks:
            values = block(values, hidden)
        values = self.norm(values)
        if self.continued:
            told: Tensor = self.output(values)
            return told.mT
        last = (~hidden).sum(dim=1).sub(1).clamp(min=0)
        logits: Tensor = self.output(torch.take_along_dim(values, last[:, None, None], dim=1)[:, 0])
        return logits
