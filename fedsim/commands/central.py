"""What the commands around proofs work with."""

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fedsim.core.errors import FedsimError

if TYPE_CHECKING:
    from fedsim.config.compose import Composed
    from fedsim.defenses.integrity.proof.expected import Work
    from fedsim.defenses.integrity.proof.proof_of_learning import ProofOfLearning
    from fedsim.integrity.shares import Share
    from fedsim.integrity.training import CentralTraining
    from fedsim.integrity.verify import ProofFile


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


class Parent(NamedTuple):
    """A proof that another begins at the end of, and what of the settings is other for it."""

    file: "ProofFile"
    overrides: Sequence[str]


class Errand(NamedTuple):
    """What a verifier is told: which proof, by which settings, and which share of it is its own.

    Files are in it as they were read, once: all that share a proof judge the same one.
    """

    proof: "ProofFile"
    overrides: Sequence[str]
    loop: str | None  # the user's own, by its name
    model: tuple[Path, bytes] | None  # a file of weights
    parents: Sequence[Parent]
    challenge: int
    share: tuple[int, int]


def parent_of(text: str) -> Parent:
    """Return the parent that an option names: a file, and settings behind it."""
    from fedsim.integrity.verify import read_proof

    path, overrides = text, list[str]()
    if not Path(text).is_file():
        path, *overrides = shlex.split(text) or [text]
    return Parent(read_proof(Path(path)), overrides)


def judged_file(errand: Errand) -> "Share":
    """Judge a proof, or a share of it, in this process."""
    import torch

    from fedsim.core.randomness import generator
    from fedsim.integrity.models import read_model
    from fedsim.integrity.shares import Share
    from fedsim.integrity.verify import Link, verify_file

    if errand.loop is not None:
        return _judged_loop(errand)
    audit, training, _ = central(errand.overrides)
    audit.how = replace(audit.how, share=errand.share)
    parents = [
        Link(parent.file, central((*errand.overrides, *parent.overrides))[1]) for parent in errand.parents
    ]
    torch.set_num_threads(training.threads)
    works, model = list["Work"](), None if errand.model is None else read_model(*errand.model)
    verdict = verify_file(
        errand.proof,
        training,
        audit,
        generator(errand.challenge),
        model=model,
        parents=parents,
        works=works,
    )
    return Share(verdict, works)


def _judged_loop(errand: Errand) -> "Share":
    """Judge a proof of a user's own loop, which is found by its name, in the working folder too."""
    import torch

    from fedsim.config.build_central import auditor
    from fedsim.config.compose import composed, with_defaults
    from fedsim.core.imports import imported
    from fedsim.core.randomness import generator
    from fedsim.defenses.integrity.proof.expected import Work
    from fedsim.integrity.models import read_model
    from fedsim.integrity.shares import Share
    from fedsim.integrity.verify import check_seeds_keys
    from fedsim.integrity.verify_loop import verify_loop

    assert errand.loop is not None
    for text in errand.overrides:
        if text.startswith(("model=", "data=", "proof.steps=", "audit.every=")):
            raise FedsimError(f"{text}: the loop says what is trained, and how. Remedy: leave it out.")
    if errand.parents:
        raise FedsimError("--parent: a loop says itself where it begins. Remedy: leave it out.")
    config = composed(with_defaults(errand.overrides, ["audit=proof_of_learning", "name=proof"])).config
    torch.set_num_threads(config.threads)
    keys = None if config.proof["keys"] is None else Path(config.proof["keys"])
    check_seeds_keys(errand.proof, keys, config.seed)
    work = Work()
    verdict = verify_loop(
        errand.proof.sealed,
        imported(errand.loop, "--loop"),
        replace(auditor(config).how, share=errand.share),
        generator(errand.challenge),
        keys=keys,
        seed=config.seed,
        model=None if errand.model is None else read_model(*errand.model),
        work=work,
    )
    return Share(verdict, [work])
