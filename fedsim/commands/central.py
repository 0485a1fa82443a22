"""What the commands around proofs work with."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fedsim.core.errors import FedsimError

if TYPE_CHECKING:
    from fedsim.config.compose import Composed
    from fedsim.core.types import Verdict
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


class Errand(NamedTuple):
    """What a verifier is told: which proof, by which settings, and which share of it is its own."""

    proof: Path
    overrides: Sequence[str]
    loop: str | None  # the user's own, by its name
    model: Path | None
    parent: Path | None
    challenge: int
    share: tuple[int, int]


def judged_file(errand: Errand) -> "Verdict":
    """Judge a proof, or a share of it, in this process."""
    import torch

    from fedsim.core.randomness import generator
    from fedsim.integrity.verify import verify_file

    if errand.loop is not None:
        return _judged_loop(errand)
    audit, training, _ = central(errand.overrides)
    audit.how = replace(audit.how, share=errand.share)
    torch.set_num_threads(training.threads)
    challenge = generator(errand.challenge)
    return verify_file(errand.proof, training, audit, challenge, model=errand.model, parent=errand.parent)


def _judged_loop(errand: Errand) -> "Verdict":
    """Judge a proof of a user's own loop, which is found by its name, in the working folder too."""
    import torch

    from fedsim.config.build_central import auditor
    from fedsim.config.compose import composed, with_defaults
    from fedsim.core.imports import imported
    from fedsim.core.randomness import generator
    from fedsim.integrity.verify import read_sealed
    from fedsim.integrity.verify_loop import verify_loop

    assert errand.loop is not None
    for text in errand.overrides:
        if text.startswith(("model=", "data=", "proof.steps=", "audit.every=")):
            raise FedsimError(f"{text}: the loop says what is trained, and how. Remedy: leave it out.")
    if errand.parent is not None:
        raise FedsimError("--parent: a loop says itself where it begins. Remedy: leave it out.")
    config = composed(with_defaults(errand.overrides, ["audit=proof_of_learning", "name=proof"])).config
    torch.set_num_threads(config.threads)
    keys = None if config.proof["keys"] is None else Path(config.proof["keys"])
    return verify_loop(
        read_sealed(errand.proof, keys, config.seed),
        imported(errand.loop, "--loop"),
        replace(auditor(config).how, share=errand.share),
        generator(errand.challenge),
        keys=keys,
        seed=config.seed,
        model=errand.model,
    )
