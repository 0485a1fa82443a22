"""From a plain config to objects: the last place that sees a config."""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError
from torch import Tensor, nn

from fedsim.config.checks import check_public_images, check_top_level, fitting
from fedsim.config.compose import parse_text
from fedsim.config.instances import instance, members, of_type
from fedsim.core import settings
from fedsim.core.errors import FedsimError
from fedsim.core.federation import Federation, round_half_up
from fedsim.core.interfaces import Attack, Audit, Behaviour, Defense, Metric, Tracker
from fedsim.core.randomness import derived_seed, generator
from fedsim.core.types import Task
from fedsim.data.images import Dataset
from fedsim.data.partition import partition
from fedsim.flower.overflow import largest_entry
from fedsim.flower.setups import ClientSetup
from fedsim.lab.experiment import Experiment
from fedsim.models.batch_norm import set_batch_norm
from fedsim.storage.folder import Storage
from fedsim.storage.runfolder import PARTITION_FILE
from fedsim.storage.tensors import read_tensors


def experiment(config: DictConfig) -> Experiment:
    """Build everything that a run needs from a resolved config."""
    try:
        return _experiment(config)
    except ConfigAttributeError as error:  # somebody else's config, or an older one
        raise FedsimError(f"config: {error}") from error


def _experiment(config: DictConfig) -> Experiment:
    check_top_level(config)
    data, defenses = dataset_of(config), members(config.defense, Defense, "defense")
    config, rules = _by_the_rules(config, defenses)
    config_text, model = OmegaConf.to_yaml(config), model_of(config, data.task)
    attack = of_type(instance(config.attack, "attack"), Attack, "attack")
    check_public_images(attack, data.train)
    return fitting(
        Experiment(
            name=str(config.name),
            seed=config.seed,
            config_text=config_text,
            prepare_clients=functools.partial(prepare_clients, config_text),
            rebuild=functools.partial(rebuilt, config_text),
            task=data.task,
            test=data.test,
            model=model,
            first_scale=largest_entry(dict(model.named_parameters())),
            federation=rules,
            engine=instance(config.engine, "engine"),
            attack=attack,
            attack_name=str(config.choices.attack),
            metrics=members(config.metric, Metric, "metric"),
            metric_names=tuple(map(str, config.metric or {})),
            defenses=defenses,  # to describe the run; clients build their own
            audit=_audit(config, rules, defenses),
            malicious=_malicious_clients(config, rules)[0],
            added_defenses=config.get("added_defenses", 0),
            knows_defense=config.threat.knows_defense,
            device=str(config.device),
            threads=config.threads,
            tracker=_tracker(config),
            attackers=config.attackers,
            keep=str(config.get("keep", "all")),
        )
    )


@functools.lru_cache(maxsize=1)
def rebuilt(config_text: str) -> Experiment:
    """Build an experiment from a run's config, once in each process that attacks for it."""
    return experiment(parse_text(config_text))


def prepare_clients(config_text: str, folder: Path) -> Callable[[], ClientSetup]:
    """Decide who owns which images, once, and leave it where every client's process finds it.

    Returns what a client calls to get its setup. It carries no data, so that it can travel to workers.
    """
    config = parse_text(config_text)
    rules, data = _federation(config), dataset_of(config)
    shares = partition(
        data.train.labels,
        clients=rules.clients,
        kind=rules.partition,
        alpha=rules.alpha,
        classes_per_client=rules.classes_per_client,
        seed=config.seed,
    )
    fewest = min(len(share) for share in shares)
    if instance(config.audit, "audit") is not None and fewest < rules.batch_size:
        raise FedsimError(
            f"audit: a client owns {fewest} images, and a proof is of batches of {rules.batch_size}. "
            "Remedy: a smaller federation.batch_size, fewer clients, or federation.partition=iid."
        )
    owned = {f"client_{i}": share for i, share in enumerate(shares)}
    Storage(folder).write_tensors(PARTITION_FILE, owned)
    return functools.partial(client_setup, config_text, folder)


@functools.lru_cache(maxsize=1)
def client_setup(config_text: str, folder: Path) -> ClientSetup:
    """Build what clients need, once in each process that runs clients."""
    config = parse_text(config_text)
    data = dataset_of(config)
    if (stored := Storage(folder).read_tensors(PARTITION_FILE)) is None:
        raise FedsimError(f"no such file: {folder / PARTITION_FILE}, which says who owns which images")
    shares = stored[0]
    rules, model = _federation(config), model_of(config, data.task).to(config.device)
    set_batch_norm(model, rules.batch_norm)
    return ClientSetup(
        model=model,
        train=data.train,
        shares=tuple(shares[f"client_{i}"] for i in range(len(shares))),
        federation=rules,
        defenses=members(config.defense, Defense, "defense"),
        behaviours=_malicious_clients(config, rules)[1],
        audit=_audit(config, rules, ()),
        task=data.task,
        seed=config.seed,
        device=str(config.device),
        threads=config.threads,
    )


def dataset_of(config: DictConfig) -> Dataset:
    """Return the data set that a config names."""
    return _dataset(OmegaConf.to_yaml(config.data))


@functools.lru_cache(maxsize=2)
def _dataset(data_text: str) -> Dataset:
    return of_type(instance(parse_text(data_text), "data"), Dataset, "data")


def _federation(config: DictConfig) -> Federation:
    return of_type(instance(config.federation, "federation"), Federation, "federation")


def model_of(config: DictConfig, task: Task, seed: int | None = None) -> nn.Module:
    """Build the config's model from its seed, or from another one."""
    seed = derived_seed(config.seed, "model") if seed is None else seed
    return _initialised(config.model, f"model {config.choices.model}", task, seed)


def seeded_model(node: DictConfig, label: str, task: Task, seed: int = 0) -> nn.Module:
    """Build a model as an experiment of this seed would."""
    return _initialised(node, label, task, derived_seed(seed, "model"))


def _initialised(config: DictConfig, label: str, task: Task, seed: int) -> nn.Module:
    """Build a model with its seeded initialisation, or the weights of its checkpoint."""
    node = OmegaConf.masked_copy(config, [str(key) for key in config if key != "checkpoint"])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = instance(node, "model", task)
    model = of_type(model, nn.Module, "model").eval()
    try:
        with torch.no_grad():
            model(torch.zeros(1, *task.input_shape))
    except RuntimeError as error:
        raise FedsimError(
            f"{label} does not take images of shape {task.input_shape} ({error}). "
            "Remedy: another model, or larger images."
        ) from error
    if config.get("checkpoint"):
        load_checkpoint(model, Path(config.checkpoint).expanduser())
    return model


def load_checkpoint(model: nn.Module, path: Path) -> None:
    """Load safetensors weights, such as an earlier run's model.safetensors, into a model."""
    stored, _ = read_tensors(path)
    expected: dict[str, Tensor] = model.state_dict()
    parameters = {name for name, _ in model.named_parameters()}
    for name in sorted(parameters | stored.keys()):
        if name not in stored or name not in expected:
            what = "misses" if name not in stored else "holds unknown"
            raise FedsimError(f"{path} {what} tensor {name!r}. Remedy: a checkpoint of the same model.")
        if stored[name].shape != expected[name].shape:
            raise FedsimError(
                f"{path}: tensor {name!r}: expected shape {tuple(expected[name].shape)}, "
                f"got {tuple(stored[name].shape)}. Remedy: a checkpoint of the same model and data shape."
            )
    model.load_state_dict(stored, strict=False)  # buffers may be missing: only parameters travel


def _by_the_rules(config: DictConfig, defenses: Sequence[Defense]) -> tuple[DictConfig, Federation]:
    """Let defenses change the rules of the federation; return the config that says so, and the rules."""
    rules = _federation(config)
    for defense in defenses:
        rules = defense.rules(rules)
    changed = {key: getattr(rules, key) for key in config.federation if key != "_target_"}
    merged = OmegaConf.merge(config, {"federation": changed})
    assert isinstance(merged, DictConfig)
    if rules.mode != config.federation.mode:
        merged.choices.federation = rules.mode
    return merged, rules


def _audit(config: DictConfig, rules: Federation, defenses: Sequence[Defense]) -> Audit | None:
    """Build the audit, if there is one, and refuse federations whose replies a trace cannot explain."""
    if (built := instance(config.audit, "audit")) is None:
        return None
    audit = of_type(built, Audit, "audit")
    if not all(defense.repeatable for defense in defenses):
        raise FedsimError(
            "audit: plain local steps must lead to what is sent, by what the server can do again. "
            "Remedy: defenses without chance or memory that act on replies alone (clip, no_bias, quantize to "
            "sign or 16 bits, sparsify's largest, local_steps), or audit=none."
        )
    return audit


def _tracker(config: DictConfig) -> Tracker:
    """Build who is told of the run; a run of an older fedsim names nobody."""
    node = config.get("tracking")
    return Tracker() if node is None else of_type(instance(node, "tracking"), Tracker, "tracking")


def _malicious_clients(
    config: DictConfig, rules: Federation
) -> tuple[tuple[str, ...], tuple[Behaviour, ...]]:
    """Decide which clients cheat, and how: names, and behaviours of all clients (none if all are honest)."""
    nodes = dict(config.client or {})
    if not nodes:
        return ("",) * rules.clients, ()
    for name, node in nodes.items():
        share = node.get("share") if isinstance(node, DictConfig) else node
        settings.number(f"client.{name}.share", share, least=0, most=1)
        if share > 0 and round_half_up(share * rules.clients) == 0:
            raise FedsimError(
                f"client.{name}.share={share}: that is none of {rules.clients} clients. "
                f"Remedy: at least {1 / rules.clients:.3g}, or more clients."
            )
    if sum(node.share for node in nodes.values()) > 1 + 1e-9:
        raise FedsimError(f"client: the shares of {', '.join(map(str, nodes))} come to more than 1")
    order = torch.randperm(rules.clients, generator=generator(config.seed, "cheats")).tolist()
    names, behaviours = [""] * rules.clients, [Behaviour()] * rules.clients
    for name, node in nodes.items():
        number = round_half_up(node.share * rules.clients)
        own = OmegaConf.masked_copy(node, [key for key in node if key != "share"])
        made = of_type(instance(own, f"client.{name}"), Behaviour, "client")
        for client in order[:number]:
            names[client], behaviours[client] = str(name), made
        order = order[number:]
    return tuple(names), tuple(behaviours)
