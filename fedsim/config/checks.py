"""What configs and experiments must fulfil before anything runs; every complaint names a remedy."""

import math

import torch
from omegaconf import DictConfig, OmegaConf

from fedsim.core.errors import FedsimError
from fedsim.core.interfaces import Defense
from fedsim.lab.experiment import Experiment

PRECISIONS = ("float32", "float64", "bfloat16", "float16")


def check_top_level(config: DictConfig) -> None:
    """Check settings that belong to no group."""
    if not isinstance(config.seed, int):
        raise FedsimError(f"seed: expected a whole number, got {config.seed!r}")
    if "/" in str(config.name) or str(config.name) in ("", ".", "..") or not str(config.name).isprintable():
        raise FedsimError(f"name: expected a word for a folder, without a slash, got {str(config.name)!r}")
    if not isinstance(config.threat, DictConfig) or list(config.threat) != ["knows_defense"]:
        raise FedsimError(f"threat: expected the key knows_defense, got {config.threat!r}")
    if not isinstance(config.threat.knows_defense, bool):
        raise FedsimError(
            f"threat.knows_defense: expected true or false, got {config.threat.knows_defense!r}"
        )
    if not isinstance(config.threads, int) or config.threads < 1:
        raise FedsimError(f"threads: expected a whole number of at least 1, got {config.threads!r}")
    if not isinstance(config.attackers, int) or isinstance(config.attackers, bool) or config.attackers < 1:
        raise FedsimError(f"attackers: expected a whole number of at least 1, got {config.attackers!r}")
    if config.get("keep", "all") not in ("all", "scores"):
        raise FedsimError(f"keep: expected all or scores, got {config.keep!r}")
    try:
        device = torch.device(config.device)
    except RuntimeError as error:
        raise FedsimError(f"device: expected cpu or cuda, got {config.device!r}") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise FedsimError("device=cuda: torch finds no GPU here. Remedy: device=cpu.")


def check_public_images(config: DictConfig) -> None:
    """Refuse public images that are the clients' own: the attack would be given what it is scored on."""
    public = config.attack.get("public")
    if (
        isinstance(public, DictConfig)
        and public.get("split") == "train"
        and public.get("data") == config.data
    ):
        raise FedsimError(
            "attack.public.split=train: the clients own the training split of this data set. "
            "Remedy: attack.public.split=test, or another attack.public.data."
        )


def check_proof(config: DictConfig) -> None:
    """Check the settings of a training outside of a federation."""

    def expect(key: str, expected: str, holds: bool) -> None:
        if not holds:
            raise FedsimError(f"proof.{key}: expected {expected}, got {config.proof[key]!r}")

    proof = OmegaConf.to_container(config.proof)
    assert isinstance(proof, dict)
    for key in ("steps", "batch_size"):
        expect(key, "a whole number of at least 1", _is_whole(proof[key]))
    rate, study = proof["learning_rate"], proof["study"]
    expect("learning_rate", "a positive number", isinstance(rate, int | float) and 0 < rate < math.inf)
    for key in ("intervals", "batch_sizes"):
        listed = isinstance(proof[key], list) and bool(proof[key]) and all(map(_is_whole, proof[key]))
        expect(key, "a list of whole numbers of at least 1", listed)
    expect("study", "a list of studies, such as [reproduction]", isinstance(study, list) and bool(study))
    expect("precision", "float32 or float16", proof["precision"] in ("float32", "float16"))
    if config.model.get("checkpoint"):
        raise FedsimError(
            "model.checkpoint: a proof begins at a random initialisation. Remedy: model.checkpoint=null."
        )


def check_forge(config: DictConfig) -> None:
    """Check the rules of a forging game."""
    forge = OmegaConf.to_container(config.forge)
    assert isinstance(forge, dict)

    def expect(key: str, expected: str, holds: bool) -> None:
        if not holds:
            raise FedsimError(f"forge.{key}: expected {expected}, got {forge[key]!r}")

    at, fractions, delta = forge["at"], forge["fractions"], forge["delta"]
    expect("challenges", "a whole number of at least 1", _is_whole(forge["challenges"]))
    steps = isinstance(at, list) and bool(at) and all(_is_whole(step) or step == 0 for step in at)
    examples = forge["examples"]
    listed = isinstance(examples, list) and bool(examples) and all(_is_whole(i) or i == 0 for i in examples)
    expect("examples", "null or a list of indices", examples is None or listed)
    if examples is not None and (at is not None or forge["batches"] is not None):
        raise FedsimError("forge.examples: the steps that used them are the challenges. Remedy: no forge.at.")
    expect("at", "null or a list of steps", at is None or steps)
    batches = forge["batches"]
    expect("batches", "null or a whole number of at least 1", batches is None or _is_whole(batches))
    shares = isinstance(fractions, list) and bool(fractions) and all(_is_share(f) for f in fractions)
    expect("fractions", "a list of shares in [0, 1]", shares)
    expect("precision", f"one of {', '.join(PRECISIONS)}", forge["precision"] in PRECISIONS)
    limit = isinstance(delta, int | float) and not isinstance(delta, bool) and 0 <= delta < math.inf
    expect("delta", "null or a number of at least 0", delta is None or limit)


def fitting(experiment: Experiment) -> Experiment:
    """Refuse parts that do not go together."""
    rules, defenses, cheating = experiment.federation, experiment.defenses, any(experiment.malicious)
    if (cheating or experiment.audit) and "loss" in rules.disclose:
        raise FedsimError(
            "federation.disclose: no loss is told with client=[...] or an audit. Remedy: leave it out."
        )
    if cheating and any(_acts_on_steps(defense) for defense in defenses):
        raise FedsimError(
            "client: cheats do not let defences into their local steps. Remedy: defences on what leaves the "
            "client (clip, noise, sparsify, ...), or client=[]."
        )
    if not any(defense.sums_replies for defense in defenses):
        return experiment
    if len(rules.participants(experiment.seed, 1)) < 2:
        raise FedsimError(
            "secure_aggregation: a sum over one client hides nothing. Remedy: more federation.clients or a "
            "higher federation.participation."
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


def _is_share(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
