"""From config to objects: the last place that sees a config."""

import functools
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path

import torch
import yaml
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import ConfigAttributeError, OmegaConfBaseException
from torch import Tensor, nn

from fedsim.config.catalog import config_dir
from fedsim.config.checks import check_forge, check_proof, check_public_images, check_top_level, fitting
from fedsim.config.instances import instance, members, of_type
from fedsim.core.errors import FedsimError
from fedsim.core.federation import Federation, round_half_up
from fedsim.core.interfaces import Attack, Audit, Behaviour, CentralTraining, Defense, Forgery, Metric
from fedsim.core.randomness import derived_seed, generator
from fedsim.core.types import Task
from fedsim.data.images import Dataset
from fedsim.data.partition import partition
from fedsim.flower.client import ClientSetup
from fedsim.flower.overflow import largest_entry
from fedsim.integrity.forge import Game, Rules
from fedsim.lab.experiment import Experiment
from fedsim.models.batch_norm import set_batch_norm
from fedsim.storage.files import read_tensors
from fedsim.storage.folder import Storage
from fedsim.storage.runfolder import PARTITION_FILE


def compose(overrides: Sequence[str] = ()) -> DictConfig:
    """Compose a config as the command line would, for tests and notebooks."""
    return plain(compose_hydra(overrides))


def compose_with_folder(overrides: Sequence[str]) -> tuple[DictConfig, Path]:
    """Compose a config, and return the folder that its results go to as well."""
    composed = compose_hydra(overrides)
    return plain(composed), Path(composed.hydra.run.dir)


def compose_replay(config_text: str, overrides: Sequence[str]) -> tuple[DictConfig, Path]:
    """Take a run's config, with another attack or metrics if asked for; also return the run folder to use."""
    played = parse_text(config_text)
    asked = {override.lstrip("+~").partition("=")[0].partition(".")[0] for override in overrides}
    added = [f"name='replay_${{choices.attack}}_{played.choices.model}_{played.choices.data}'"]
    same_attack = not any(override.startswith("attack=") for override in overrides)
    if same_attack:
        added.append(f"attack={played.choices.attack}")
    composed = compose_hydra([*added, *overrides])
    with open_dict(composed):
        if same_attack:  # the run's own settings, but for the keys that are named
            for override in overrides:
                if (key := override.lstrip("+").partition("=")[0]).startswith("attack."):
                    OmegaConf.update(played, key, OmegaConf.select(composed, key), force_add=True)
            composed.attack = played.attack
        for key in ("metric", "device", "threads", "attackers", "threat"):
            if key not in asked and key in played:
                composed[key] = played[key]
        composed.choices.attack = OmegaConf.to_container(composed.choices, resolve=True)["attack"]  # type: ignore[index,call-overload]
        path = Path(composed.hydra.run.dir)
        for key in ("data", "model", "federation", "engine", "defense", "client", "audit", "seed"):
            if key in played:  # an older run may not know it
                composed[key] = played[key]
        for key in ("data", "model", "federation", "engine", "audit"):
            composed.choices[key] = played.choices.get(key, "none")
    return plain(composed), path


def games(overrides: Sequence[str], sweep: bool) -> tuple[Path, list[tuple[str, DictConfig]]]:
    """Compose a config for each combination of the values that overrides list, and the folder for all."""
    given = parsed(overrides)
    plain_ones = [str(override.input_line) for override in given if not override.is_sweep_override()]
    first = compose_hydra(plain_ones)
    own = [override for override in given if override.is_sweep_override()]
    if own and not sweep:
        raise FedsimError(f"{own[0].input_line}: several values make a sweep. Remedy: fedsim forge -m ...")
    named = {override.get_key_element() for override in given}
    listed = dict(first.hydra.sweeper.params or {}) if sweep else {}
    swept = parsed([f"{key}={value}" for key, value in listed.items() if key not in named]) + own
    values = [[f"{o.get_key_element()}={v}" for v in o.sweep_string_iterator()] for o in swept]
    combinations = [(", ".join(chosen), compose([*plain_ones, *chosen])) for chosen in product(*values)]
    return Path(first.hydra.run.dir), combinations


def parsed(overrides: Sequence[str]) -> list[Override]:
    """Read overrides as Hydra does."""
    try:
        return OverridesParser.create().parse_overrides(list(overrides))
    except HydraException as error:
        raise FedsimError(str(error)) from error


def compose_hydra(overrides: Sequence[str]) -> DictConfig:
    """Compose a config with Hydra's own settings in it."""
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(config_dir()), version_base="1.3"):
            config = hydra_compose("config", overrides=list(overrides), return_hydra_config=True)
            HydraConfig.instance().set_config(config)
            return config
    except (HydraException, OmegaConfBaseException) as error:
        raise FedsimError(str(error)) from error


def plain(config: DictConfig) -> DictConfig:
    """Resolve a config, take Hydra's own settings out of it, and make its paths absolute."""
    try:
        resolved = OmegaConf.to_container(_own(config), resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise FedsimError(f"config: {error}. Remedy: set that key on the command line.") from error
    made = OmegaConf.create(resolved)
    assert isinstance(made, DictConfig)
    _make_paths_absolute(made)  # a replay may start from another folder
    return made


def _make_paths_absolute(node: DictConfig) -> None:
    for key, value in node.items():
        if isinstance(value, DictConfig):
            _make_paths_absolute(value)
        elif key in ("root", "path", "checkpoint", "keys", "root_certificates") and isinstance(value, str):
            node[key] = str(Path(value).expanduser().resolve())


def as_text(config: DictConfig) -> str:
    """Return a config as yaml, without Hydra's own settings; missing values stay marked."""
    return OmegaConf.to_yaml(OmegaConf.create(OmegaConf.to_container(_own(config), resolve=True)))


def _own(config: DictConfig) -> DictConfig:
    return OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])


def experiment(config: DictConfig) -> Experiment:
    """Build everything that a run needs from a resolved config."""
    try:
        return _experiment(config)
    except ConfigAttributeError as error:  # somebody else's config, or an older one
        raise FedsimError(f"config: {error}") from error


def _experiment(config: DictConfig) -> Experiment:
    check_top_level(config)
    check_public_images(config)
    data, defenses = _dataset(OmegaConf.to_yaml(config.data)), members(config.defense, Defense, "defense")
    config, rules = _by_the_rules(config, defenses)
    config_text, model = OmegaConf.to_yaml(config), _model(config, data.task)
    return fitting(
        Experiment(
            name=str(config.name),
            seed=config.seed,
            config_text=config_text,
            prepare_clients=functools.partial(prepare_clients, config_text),
            task=data.task,
            test=data.test,
            model=model,
            first_scale=largest_entry(dict(model.named_parameters())),
            federation=rules,
            engine=instance(config.engine, "engine"),
            attack=of_type(instance(config.attack, "attack"), Attack, "attack"),
            attack_name=str(config.choices.attack),
            metrics=members(config.metric, Metric, "metric"),
            defenses=defenses,  # to describe the run; clients build their own
            audit=_audit(config, rules, defenses),
            malicious=_malicious_clients(config, rules)[0],
            knows_defense=config.threat.knows_defense,
            device=str(config.device),
            threads=config.threads,
            attackers=config.attackers,
            keep=str(config.get("keep", "all")),
        )
    )


def central_training(config: DictConfig, folder: Path) -> tuple[Audit, CentralTraining]:
    """Build what `prove`, `verify` and `calibrate` work with."""
    check_top_level(config)
    check_proof(config)
    data, proof = _dataset(OmegaConf.to_yaml(config.data)), config.proof

    def fresh(number: int) -> nn.Module:
        return _model(config, data.task, seed=derived_seed(config.seed, "fresh", number))

    training = CentralTraining(
        fresh=fresh,
        train=data.train,
        task=data.task,
        steps=proof.steps,
        batch_size=proof.batch_size,
        learning_rate=float(proof.learning_rate),
        precision=proof.precision,
        seed=config.seed,
        keys=None if proof["keys"] is None else Path(proof["keys"]),
        threads=config.threads,
        folder=folder,
        study=tuple(proof.study),
        intervals=tuple(proof.intervals),
        batch_sizes=tuple(proof.batch_sizes),
    )
    return auditor(config), training


def forging_game(config: DictConfig, folder: Path, name: str) -> Game:
    """Build what `fedsim forge` plays."""
    audit, training = central_training(config, folder)
    check_forge(config)
    data, forge = _dataset(OmegaConf.to_yaml(config.data)), config.forge
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
    )
    return Game(
        name=name, training=training, audit=audit, forgeries=forgeries, reference=data.test, rules=rules
    )


def auditor(config: DictConfig) -> Audit:
    """Build the audit by itself."""
    audit = of_type(instance(config.audit, "audit"), Audit, "audit")
    if not audit.wanted:
        raise FedsimError("audit=none proves nothing. Remedy: audit=proof_of_learning.")
    return audit


def prepare_clients(config_text: str, folder: Path) -> Callable[[], ClientSetup]:
    """Decide who owns which images, once, and leave it where every client's process finds it.

    Returns what a client calls to get its setup. It carries no data, so that it can travel to workers.
    """
    config = parse_text(config_text)
    rules, data = _federation(config), _dataset(OmegaConf.to_yaml(config.data))
    shares = partition(
        data.train.labels,
        clients=rules.clients,
        kind=rules.partition,
        alpha=rules.alpha,
        classes_per_client=rules.classes_per_client,
        seed=config.seed,
    )
    fewest = min(len(share) for share in shares)
    if config.choices.get("audit", "none") != "none" and fewest < rules.batch_size:
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
    data = _dataset(OmegaConf.to_yaml(config.data))
    if (stored := Storage(folder).read_tensors(PARTITION_FILE)) is None:
        raise FedsimError(f"no such file: {folder / PARTITION_FILE}, which says who owns which images")
    shares = stored[0]
    rules, model = _federation(config), _model(config, data.task).to(config.device)
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


@functools.lru_cache(maxsize=2)
def _dataset(data_text: str) -> Dataset:
    return of_type(instance(parse_text(data_text), "data"), Dataset, "data")


def _federation(config: DictConfig) -> Federation:
    return of_type(instance(config.federation, "federation"), Federation, "federation")


def _model(config: DictConfig, task: Task, seed: int | None = None) -> nn.Module:
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
    """Let defences change the rules of the federation; return the config that says so, and the rules."""
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
    """Build the audit, and refuse federations whose replies a trace cannot explain."""
    audit = of_type(instance(config.audit, "audit"), Audit, "audit")
    if not audit.wanted:
        return None
    if rules.mode != "fedavg" or defenses:
        raise FedsimError(
            "audit: a trace of plain local steps must end in the update that is sent. "
            "Remedy: federation=fedavg and defense=[], or audit=none."
        )
    return audit


def _malicious_clients(
    config: DictConfig, rules: Federation
) -> tuple[tuple[str, ...], tuple[Behaviour, ...]]:
    """Decide which clients cheat, and how: names, and behaviours of all clients (none if all are honest)."""
    nodes = dict(config.client or {})
    if not nodes:
        return ("",) * rules.clients, ()
    if rules.mode != "fedavg":
        raise FedsimError("client: cheats are on local training. Remedy: federation=fedavg.")
    for name, node in nodes.items():
        share = node.get("share") if isinstance(node, DictConfig) else node
        if not isinstance(share, int | float) or isinstance(share, bool) or not 0 <= share <= 1:
            raise FedsimError(f"client.{name}.share: expected a share in [0, 1], got {share!r}")
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


def parse_text(text: str) -> DictConfig:
    """Read a run's config: plain values, as they were resolved, with no aliases to multiply them."""
    try:
        if any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text)):
            raise FedsimError("config.yaml: expected plain values, got an alias")
        config = OmegaConf.create(text)
        if isinstance(config, DictConfig):
            OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
            for key in ("format", "kind", "source"):  # of the run folder that it stood in
                config.pop(key, None)
            if "${" not in text:
                return config
    except (yaml.YAMLError, OmegaConfBaseException, ValueError) as error:
        raise FedsimError(f"config.yaml: not readable ({error})") from error
    raise FedsimError("config.yaml: expected the plain settings of a run, got something else")
