"""What configs and experiments must fulfil before anything runs; every complaint names a remedy."""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor, nn

from fedsim.core.errors import FedsimError
from fedsim.core.interfaces import Attack, Defense
from fedsim.core.settings import listed, number, one_of, optional, switch, whole, word
from fedsim.core.types import PublicImages
from fedsim.data.images import Images
from fedsim.data.public import fingerprints, number_owned
from fedsim.lab.experiment import Experiment
from fedsim.models.learnt_prior import LearntPrior

PRECISIONS = ("float32", "float64", "bfloat16", "float16")


def check_top_level(config: DictConfig) -> None:
    """Check settings that belong to no group."""
    whole("seed", config.seed, None)
    if "/" in str(config.name) or str(config.name) in ("", ".", "..") or not str(config.name).isprintable():
        raise FedsimError(f"name: expected a word for a folder, without a slash, got {str(config.name)!r}")
    if not isinstance(config.threat, DictConfig) or list(config.threat) != ["knows_defense"]:
        raise FedsimError(f"threat: expected the key knows_defense, got {config.threat!r}")
    switch("threat.knows_defense", config.threat.knows_defense)
    whole("threads", config.threads)
    whole("attackers", config.attackers)
    one_of("keep", config.get("keep", "all"), ("all", "scores"))
    try:
        device = torch.device(config.device)
    except RuntimeError as error:
        raise FedsimError(f"device: expected cpu or cuda, got {config.device!r}") from error
    if device.type not in ("cpu", "cuda"):
        more = ": it has no float64, which exact attacks need" if device.type == "mps" else ""
        raise FedsimError(f"device: expected cpu or cuda, got {config.device!r}{more}. Remedy: device=cpu.")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise FedsimError("device=cuda: torch finds no GPU here. Remedy: device=cpu.")


def check_public_images(attack: Attack, train: Images) -> None:
    """Refuse public images that are the clients' own: the attack would be given what it is scored on."""
    for public in _public_images(attack, set()):
        learnt = isinstance(public, LearntPrior)
        seen = public.fingerprints if isinstance(public, LearntPrior) else fingerprints(public.images)
        if owned := number_owned(seen, train):
            setting = "attack.priors" if learnt else "attack.public"
            remedy = (
                "a prior learnt from others: fedsim prior train data=... prior.file=..., and its file"
                if learnt
                else "attack.public.split=test, or another attack.public.data"
            )
            raise FedsimError(
                f"{setting}: the clients own the training split of their data set, and {owned} of the "
                f"{len(seen)} public images are in it. Remedy: {remedy}."
            )


def _public_images(part: object, visited: set[int]) -> Iterator[PublicImages | LearntPrior]:
    """Find the public images of a part and of the parts within it, and what was learnt from such."""
    if id(part) in visited or isinstance(part, (Tensor, nn.Module, type)):
        return
    visited.add(id(part))
    if isinstance(part, PublicImages | LearntPrior):
        yield part
    elif isinstance(part, Mapping):
        yield from _public_images(tuple(part.values()), visited)
    elif isinstance(part, (list, tuple)):
        for within in part:
            yield from _public_images(within, visited)
    elif hasattr(part, "__dict__"):
        yield from _public_images(tuple(vars(part).values()), visited)


def check_proof(config: DictConfig) -> None:
    """Check the settings of a training outside of a federation."""
    proof = OmegaConf.to_container(config.proof)
    assert isinstance(proof, dict)
    for key in ("steps", "batch_size"):
        whole(f"proof.{key}", proof[key])
    number("proof.learning_rate", proof["learning_rate"], above=0)
    for key in ("intervals", "batch_sizes"):
        listed(f"proof.{key}", proof[key], "a list of whole numbers of at least 1", whole)
    listed("proof.study", proof["study"], "a list of studies, such as [reproduction]", word)
    one_of("proof.precision", proof["precision"], ("float32", "float16"))
    for key in ("calibration", "parent"):
        optional(word, f"proof.{key}", proof[key])
    if config.model.get("checkpoint"):
        raise FedsimError(
            "model.checkpoint: a proof begins at a random initialisation. Remedy: model.checkpoint=null."
        )


def check_prior(config: DictConfig) -> tuple[Path, int, str, int, int, int]:
    """Return file, size, split, width, steps and batch size of a prior to learn."""
    prior = OmegaConf.to_container(config.prior)
    assert isinstance(prior, dict)
    word("prior.file", prior["file"])
    return (
        Path(prior["file"]),
        whole("prior.size", prior["size"]),
        one_of("prior.split", prior["split"], ("test", "train")),
        whole("prior.width", prior["width"]),
        whole("prior.steps", prior["steps"]),
        whole("prior.batch_size", prior["batch_size"]),
    )


def check_forge(config: DictConfig) -> None:
    """Check the rules of a forging game."""
    forge = OmegaConf.to_container(config.forge)
    assert isinstance(forge, dict)
    index = partial(whole, least=0)
    whole("forge.challenges", forge["challenges"])
    optional(listed, "forge.examples", forge["examples"], "a list of indices", index)
    if forge["examples"] is not None and (forge["at"] is not None or forge["batches"] is not None):
        raise FedsimError("forge.examples: the steps that used them are the challenges. Remedy: no forge.at.")
    optional(listed, "forge.at", forge["at"], "a list of steps", index)
    optional(whole, "forge.batches", forge["batches"])
    share = partial(number, least=0, most=1)
    listed("forge.fractions", forge["fractions"], "a list of shares in [0, 1]", share)
    one_of("forge.precision", forge["precision"], PRECISIONS)
    optional(number, "forge.delta", forge["delta"], least=0)
    one_of("forge.calibration", forge["calibration"], ("reference", "own"))
    whole("forge.every", forge["every"])
    one_of("forge.distance", forge["distance"], ("off", "l2", "ssim", "embedding"))
    number("forge.least", forge["least"], least=0)


def fitting(experiment: Experiment) -> Experiment:
    """Refuse parts that do not go together."""
    rules, defenses, cheating = experiment.federation, experiment.defenses, any(experiment.malicious)
    if (cheating or experiment.audit) and "loss" in rules.disclose:
        raise FedsimError(
            "federation.disclose: no loss is told with client=[...] or an audit. Remedy: leave it out."
        )
    if cheating and any(_acts_on_steps(defense) for defense in defenses):
        raise FedsimError(
            "client: cheats do not let defenses into their local steps. Remedy: defenses on what leaves the "
            "client (clip, noise, sparsify, ...), or client=[]."
        )
    if experiment.audit and rules.sampling == "poisson":
        raise FedsimError(
            "audit: proofs are of batches of one size, and federation.sampling=poisson draws others. "
            "Remedy: federation.sampling=without_replacement."
        )
    played = defenses[: len(defenses) - experiment.added_defenses]
    if experiment.added_defenses and any(defense.sums_replies for defense in played):
        raise FedsimError(
            "defense: only sums are on record, and defenses act on single replies. Remedy: a run of its own."
        )
    for defense in defenses[len(played) :]:
        if _acts_on_steps(defense) or defense.sums_replies or type(defense).on_reply is Defense.on_reply:
            raise FedsimError(
                f"defense: {type(defense).__name__} does not act on single replies: a recording cannot show "
                "what it would do. Remedy: clip, noise, sparsify or quantize; or a run of its own."
            )
    if not any(defense.sums_replies for defense in defenses):
        return experiment
    if len(rules.participants(experiment.seed, 1)) < 2:
        raise FedsimError(
            "secure_aggregation: a sum over one client hides nothing. Remedy: more federation.clients or a "
            "higher federation.participation."
        )
    if any(defense.masks for defense in defenses) and len(rules.participants(experiment.seed, 1)) < 3:
        raise FedsimError(
            "secure_aggregation: masks need three clients: of two, each learns the other's reply from the "
            "sum. Remedy: more federation.clients, or defense.secure_aggregation.protocol=sum."
        )
    if rules.attacked_clients is not None:
        raise FedsimError(
            "federation.attacked_clients: under secure_aggregation the server sees only the sum over a "
            "round's clients. Remedy: federation.attacked_clients=null."
        )
    return experiment


def _acts_on_steps(defense: Defense) -> bool:
    kind = type(defense)
    return kind.on_batch is not Defense.on_batch or kind.on_gradient is not Defense.on_gradient
