"""What the commands around proofs work with."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedsim.config.compose import Composed
    from fedsim.defenses.integrity.proof.proof_of_learning import ProofOfLearning
    from fedsim.integrity.training import CentralTraining


def central(
    overrides: Sequence[str], name: str = "proof"
) -> "tuple[ProofOfLearning, CentralTraining, Composed]":
    """Build the verifier and the training from overrides; name: of the folder, unless they say so."""
    import torch

    from fedsim.config.build_central import central_training
    from fedsim.config.compose import composed, with_defaults

    found = composed(with_defaults(overrides, ["audit=proof_of_learning", f"name={name}"]))
    audit, training = central_training(found.config)
    torch.set_num_threads(found.config.threads)
    return audit, training, found
