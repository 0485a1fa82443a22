"""What the commands around proofs work with."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedsim.core.errors import FedsimError

if TYPE_CHECKING:
    from fedsim.config.compose import Composed
    from fedsim.core.types import Verdict
    from fedsim.defenses.integrity.proof.proof_of_learning import ProofOfLearning
    from fedsim.integrity.training import CentralTraining


def central(overrides: Sequence[str]) -> "tuple[ProofOfLearning, CentralTraining, Composed]":
    """Build the verifier and the training from overrides."""
    import torch

    from fedsim.config.build_central import central_training
    from fedsim.config.compose import composed, with_defaults

    found = composed(with_defaults(overrides, ["audit=proof_of_learning", "name=proof"]))
    audit, training = central_training(found.config)
    torch.set_num_threads(found.config.threads)
    return audit, training, found


def verify_loop_file(path: Path, overrides: Sequence[str], loop: str, model: Path | None) -> "Verdict":
    """Judge a proof of a user's own loop, which is found by its name, in the working folder too."""
    import torch

    from fedsim.config.build_central import auditor
    from fedsim.config.compose import composed, with_defaults
    from fedsim.core.imports import imported
    from fedsim.integrity.verify import challenge_of_chance, read_sealed
    from fedsim.integrity.verify_loop import verify_loop

    if given := [text for text in overrides if text.startswith(("model=", "data=", "proof.steps="))]:
        raise FedsimError(f"{given[0]}: the loop says what is trained, and how long. Remedy: leave it out.")
    config = composed(with_defaults(overrides, ["audit=proof_of_learning", "name=proof"])).config
    torch.set_num_threads(config.threads)
    keys = config.proof["keys"]
    return verify_loop(
        read_sealed(path, None if keys is None else Path(keys), config.seed),
        imported(loop, "--loop"),
        auditor(config).how,
        challenge_of_chance(),
        keys=None if keys is None else Path(keys),
        seed=config.seed,
        model=model,
    )
