"""What examples must look like beyond their shape: groups of pixels of which one is chosen, a vocabulary."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Form:
    """The rules that every example of a data set keeps."""

    one_hot: tuple[tuple[int, int], ...] = ()  # first pixel and the one behind the last, of each group
    levels: tuple[int, ...] | None = None  # grey levels (bytes) that occur; None: any

    def problem(self, images: Tensor) -> str | None:
        """Say which rule some image breaks, or None."""
        pixels = torch.round(images.double().flatten(1) * 255).long()
        for first, end in self.one_hot:
            group = pixels[:, first:end]
            if not bool(
                (((group == 0) | (group == 255)).all(dim=1) & ((group == 255).sum(dim=1) == 1)).all()
            ):
                return f"expected one choice among pixels {first} to {end - 1}: 255 once, 0 elsewhere"
        if self.levels is not None and not bool(torch.isin(pixels, torch.tensor(self.levels)).all()):
            return f"expected the {len(self.levels)} values of the data's vocabulary"
        return None


ANY_FORM = Form()
