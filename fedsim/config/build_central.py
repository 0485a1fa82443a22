"""From a plain config to trainings outside of a federation, and the games on them."""

from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import DictConfig
from torch import nn

from fedsim.config.build import dataset_of, model_of
from fedsim.config.checks import check_forge, check_proof, check_top_level
from fedsim.config.instances import instance, members, of_type
from fedsim.core.errors import FedsimError
from fedsim.core.interfaces import Forgery
from fedsim.core.randomness import derived_seed
from fedsim.integrity.forge import Game, Rules
from fedsim.integrity.training import CentralTraining

if TYPE_CHECKING:
    from fedsim.defenses.integrity.proof.proof_of_learning import ProofOfLearning


def central_training(config: DictConfig) -> tuple["ProofOfLearning", CentralTraining]:
    """Build what `prove`, `verify` and `calibrate` work with."""
    check_top_level(config)
    check_proof(config)
    data, proof = dataset_of(config), config.proof

    def fresh(number: int) -> nn.Module:
        return model_of(config, data.task, seed=derived_seed(config.seed, "fresh", number))

    def drawn(seed: int) -> nn.Module:
        return model_of(config, data.task, seed=seed)

    training = CentralTraining(
        fresh=fresh,
        drawn=drawn,
        train=data.train,
        test=data.test,
        task=data.task,
        steps=proof.steps,
        batch_size=proof.batch_size,
        learning_rate=float(proof.learning_rate),
        precision=proof.precision,
        seed=config.seed,
        keys=None if proof["keys"] is None else Path(proof["keys"]),
        calibration=None if proof.calibration is None else Path(proof.calibration),
        parent=None if proof.parent is None else Path(proof.parent),
        threads=config.threads,
        study=tuple(proof.study),
        intervals=tuple(proof.intervals),
        batch_sizes=tuple(proof.batch_sizes),
    )
    return auditor(config), training


def forging_game(config: DictConfig, name: str = "") -> Game:
    """Build what `fedsim forge` plays; name: what distinguishes it from other games beside it."""
    audit, training = central_training(config)
    check_forge(config)
    data, forge = dataset_of(config), config.forge
    forgeries = dict(zip(config.forgery, members(config.forgery, Forgery, "forgery"), strict=True))
    if not forgeries:
        raise FedsimError("forgery: expected at least one. Remedy: forgery=[greedy].")
    rules = Rules(
        challenges=forge.challenges,
        at=None if forge["at"] is None else tuple(forge["at"]),
        batches=forge.batches,
        examples=None if forge.examples is None else tuple(forge.examples),
        fractions=tuple(map(float, forge.fractions)),
        precision=forge.precision,
        delta=forge.delta,
        calibration=forge.calibration,
        every=forge.every,
        distance=forge.distance,
        least=float(forge.least),
    )
    return Game(
        name=name,
        training=training,
        domain=audit.how.domain,
        form=data.form,
        forgeries=forgeries,
        reference=data.test,
        rules=rules,
    )


def auditor(config: DictConfig) -> "ProofOfLearning":
    """Build the verifier of trainings outside of a federation."""
    from fedsim.defenses.integrity.proof.proof_of_learning import ProofOfLearning  # scipy: not in every run

    if (audit := instance(config.audit, "audit")) is None:
        raise FedsimError("audit=none proves nothing. Remedy: audit=proof_of_learning.")
    return of_type(audit, ProofOfLearning, "audit")
