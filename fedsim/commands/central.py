"""What the commands around proofs work with."""

from collections.abc import Sequence
from typing import Any


def central(overrides: Sequence[str]) -> Any:
    """Build the audit, the training and its config from overrides."""
    import torch

    from fedsim.config import build
    from fedsim.config.compose import composed, with_defaults

    found = composed(with_defaults(overrides, ["audit=proof_of_learning", "name=proof"]))
    audit, training = build.central_training(found.config, found.folder)
    torch.set_num_threads(found.config.threads)
    return audit, training, found.config
