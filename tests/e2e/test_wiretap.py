"""A wiretap on Flower strategies: training is untouched, and what is kept is what was sent."""

import random
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tapped_app
import torch
import yaml
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAdam,
    FedAvg,
    FedMedian,
    FedProx,
    QFedAvg,
    Result,
    Strategy,
)
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as draw
from tapped_app import (
    CLIENTS,
    RATE,
    ROUNDS,
    TASK,
    Masked,
    Small,
    client_app,
    counts,
    federate,
    metrics,
    tap_with_truth,
    trained_state,
)

from fedsim.attacks.privacy.labels.ilrg import ILRG
from fedsim.core.errors import FedsimError
from fedsim.core.interfaces import Attack
from fedsim.flower.engines.inline import InlineGrid
from fedsim.flower.wiretap import Wiretap
from fedsim.storage.runfolder import RunFolder

ROOT = Path(__file__).parents[2]


def assert_same(left: Result, right: Result) -> None:
    assert list(left.arrays) == list(right.arrays)
    for name, array in left.arrays.items():
        assert np.array_equal(array.numpy(), right.arrays[name].numpy(), equal_nan=True), name
    assert left.train_metrics_clientapp == right.train_metrics_clientapp
    assert left.evaluate_metrics_clientapp == right.evaluate_metrics_clientapp


def private(make: type[Strategy], **named: float) -> Callable[[Strategy], Strategy]:
    return lambda strategy: make(strategy, 0.1, num_sampled_clients=CLIENTS, **named)


STRATEGIES = {
    "FedAvg": lambda: FedAvg(fraction_train=0.7),
    "FedAdam": lambda: FedAdam(),
    "FedProx": lambda: FedProx(proximal_mu=0.1),
    "FedMedian": lambda: FedMedian(),
    "QFedAvg": lambda: QFedAvg(client_learning_rate=RATE),  # takes records apart
}
PRIVATE = {
    "server": private(DifferentialPrivacyServerSideFixedClipping, clipping_norm=0.01),
    "client": private(DifferentialPrivacyClientSideFixedClipping, clipping_norm=0.01),
    "adaptive": private(DifferentialPrivacyServerSideAdaptiveClipping, initial_clipping_norm=0.01),
}


class Greedy(Attack):
    """Uses up everybody's random numbers, and fails on every second client."""

    def run(self, model, task, observations):
        random.random(), np.random.rand(), torch.rand(3)  # noqa: NPY002
        if observations[-1].client % 2:
            raise ZeroDivisionError("oops")
        return ILRG().run(model, task, observations)


class Crafting(Attack):
    """Would send weights of its own."""

    def craft(self, model, task, round, weights):
        return {name: tensor * 0 for name, tensor in weights.items()}


@pytest.mark.parametrize("name", sorted(STRATEGIES))
@given(
    seed=draw.integers(0, 1000),
    every=draw.integers(1, 2),
    lists=draw.booleans(),
    bad=draw.sampled_from([None, "nan", "fails", "junk"]),
)
@settings(max_examples=2, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
def test_training_is_the_same_with_and_without_a_wiretap(
    tmp_path_factory, name, seed, every, lists, bad
) -> None:
    clients = client_app(bad and misbehaving(bad))
    make, folder = STRATEGIES[name], tmp_path_factory.mktemp("tap")
    plain, tap = make(), Wiretap(make(), folder, attack=Greedy(), model=Small(), task=TASK, every=every)
    outcomes = []
    for strategy in (plain, tap):
        try:
            outcomes.append(federate(strategy, clients, seed, lists))
        except Exception as error:  # a strategy's own complaint about its clients must be the same, too
            outcomes.append(repr(error))
    if isinstance(outcomes[0], str):
        assert outcomes[0] == outcomes[1]
    else:
        assert_same(*outcomes)
        assert {o.round for o in RunFolder(folder).observations()} == set(range(1, ROUNDS + 1, every))


def misbehaving(way: str) -> Callable[[Message, int, int], Message | None]:
    """Client 1 misbehaves in the second round."""

    def behave(message: Message, client: int, round: int) -> Message | None:
        if (client, round) != (1, 2):
            return None
        if way == "fails":
            raise ValueError("disk on fire")
        state = message.content["arrays"].to_torch_state_dict()
        state["last.bias"] = state["last.bias"] * float("nan") if way == "nan" else torch.zeros(2)
        return Message(RecordDict({"arrays": ArrayRecord(state), "m": metrics(client)}), reply_to=message)

    return behave


@pytest.mark.parametrize("kind", sorted(PRIVATE))
def test_flowers_privacy_wrappers_go_around_a_wiretap_and_inside_one(tmp_path, kind: str) -> None:
    wrap, clients = PRIVATE[kind], client_app()
    plain = federate(wrap(FedAvg()), clients)
    outer, inner = Wiretap(wrap(FedAvg()), tmp_path / "outer"), Wiretap(FedAvg(), tmp_path / "inner")
    assert_same(plain, federate(outer, clients))
    assert_same(plain, federate(wrap(inner), clients))
    seen = [list(RunFolder(tmp_path / name).observations()) for name in ("outer", "inner")]
    assert [len(observations) for observations in seen] == [CLIENTS * ROUNDS] * 2
    sizes = [float(observations[0].received["last.weight"].norm()) for observations in seen]
    clips_here = kind != "client"  # what lies inside server-side clipping hears clipped replies
    assert (sizes[1] < 0.9 * sizes[0]) == clips_here
    assert outer.clipping_norm == outer._wrapped.clipping_norm
    assert repr(outer).startswith("Wiretap(Differential Privacy")
    named = Wiretap(wrap(FedAvg(weighted_by_key="weight")), tmp_path / "named")
    assert named._listener.dialect.num_examples[0] == "weight"


def test_accounted_privacy_takes_a_tapped_fedavg_for_one(tmp_path) -> None:
    from flwr.supercore.privacy_accounting import SamplingMethod

    tap = Wiretap(FedAvg(), tmp_path / "average")
    assert isinstance(tap, FedAvg)
    assert isinstance(tap, Wiretap)
    accountant = SimpleNamespace(config=SimpleNamespace(sampling_method=SamplingMethod.NO_AMPLIFICATION))
    make = partial(DifferentialPrivacyServerSideFixedClipping, accountant=accountant)
    assert make(tap, 1.0, 1.0, CLIENTS).strategy is tap
    with pytest.raises(ValueError, match=r"FedAvg\.aggregate_train"):  # and no other for one
        make(Wiretap(FedAdam(), tmp_path / "adam"), 1.0, 1.0, CLIENTS)


def test_observations_are_what_was_sent_and_received(tmp_path) -> None:
    exchanged: dict[tuple[int, int], tuple[Message, Message]] = {}

    class Recording(FedAdam):
        def configure_train(self, server_round, arrays, config, grid):
            for message in (messages := list(super().configure_train(server_round, arrays, config, grid))):
                exchanged[server_round, message.metadata.dst_node_id] = [
                    {name: array.numpy().copy() for name, array in message.content["arrays"].items()}
                ]
            return iter(messages)  # a stream

        def aggregate_train(self, server_round, replies):
            for reply in (replies := list(replies)):
                exchanged[server_round, reply.metadata.src_node_id].append(
                    {name: array.numpy().copy() for name, array in reply.content["arrays"].items()}
                )
            return super().aggregate_train(server_round, replies)

    federate(Wiretap(Recording(), tmp_path / "tap", task=TASK), client_app())
    folder = RunFolder(tmp_path / "tap")
    seen = list(folder.observations())
    assert [(o.round, o.client) for o in seen] == sorted(exchanged)
    assert len(seen) == CLIENTS * ROUNDS
    for o in seen:
        sent, came = exchanged[o.round, o.client]
        assert set(o.sent) == set(Small().state_dict())
        for name in ("first.weight", "last.bias", "norm.running_mean"):
            assert np.array_equal(o.sent[name].numpy(), sent[name].astype(np.float32))
            assert np.array_equal(o.received[name].numpy(), came[name] - sent[name].astype(np.float32))
        assert float(o.received["norm.num_batches_tracked"]) == 1
        told = (o.kind, o.learning_rate, o.local_steps, o.num_examples, o.batch_norm)
        assert told == ("update", RATE, 1, 6 + o.client - 1000, "train")
        assert o.bytes > 1000
        assert o.loss > 0
    assert not folder.faults()
    assert exchanged[2, 1000][0]["first.weight"].dtype == np.float64  # FedAdam's; the clients hold float32


@pytest.mark.parametrize(
    ("way", "reason"),
    [
        ("nan", "tensor 'last.bias' holds NaN"),
        ("fails", "the client failed: ValueError: disk on fire"),
        ("junk", "tensor 'last.bias': expected shape (3,), got (2,)"),
    ],
)
def test_a_bad_reply_is_a_fault_and_passes_on(tmp_path, way: str, reason: str) -> None:
    class Counts(FedAvg):
        passed = 0

        def aggregate_train(self, server_round, replies):
            replies = list(replies)
            self.passed += len(replies)
            good = [r for r in replies if r.metadata.src_node_id != 1001]
            return super().aggregate_train(server_round, good)

    tap = Wiretap(Counts(), tmp_path / "tap")
    federate(tap, client_app(misbehaving(way)))
    assert tap.passed == CLIENTS * ROUNDS
    (fault,) = RunFolder(tmp_path / "tap").faults()
    assert (fault.round, fault.client) == (2, 1001)
    assert reason in fault.reason
    assert len(RunFolder(tmp_path / "tap").observed()) == CLIENTS * ROUNDS - 1


def test_a_silent_client_and_a_full_disk_are_noted_and_stop_nothing(tmp_path, monkeypatch, caplog) -> None:
    answer = InlineGrid._answer

    def silent(self, message, seconds):
        return None if message.metadata.dst_node_id == 1002 else answer(self, message, seconds)

    monkeypatch.setattr(InlineGrid, "_answer", silent)
    federate(Wiretap(FedAvg(), tmp_path / "tap"), client_app())
    assert {fault.reason for fault in RunFolder(tmp_path / "tap").faults()} == {
        "no reply within the strategy's timeout"
    }

    def full(*arguments, **named):
        raise OSError("no space left on device")

    for name in ("keep_observation", "keep_fault", "write_summary"):
        monkeypatch.setattr(RunFolder, name, full)
    plain = federate(FedAvg(), client_app())
    assert_same(plain, federate(Wiretap(FedAvg(), tmp_path / "full"), client_app()))
    assert "no space left on device" in caplog.text


def test_a_strategy_with_a_start_of_its_own_and_attributes_stays_itself(tmp_path) -> None:
    class Own(FedAvg):
        def start(self, *arguments, **named):
            self.started = self.fraction_train
            return super().start(*arguments, **named)

    own = Own()
    tap = Wiretap(Wiretap(own, tmp_path / "inner"), tmp_path / "outer", every=2)
    tap.fraction_train = 0.9
    assert (own.fraction_train, tap.min_train_nodes) == (0.9, 2)
    assert_same(federate(FedAvg(fraction_train=0.9), client_app()), federate(tap, client_app()))
    assert own.started == 0.9
    assert "configure_train" not in vars(own)
    assert {o.round for o in RunFolder(tmp_path / "inner").observations()} == {1, 2}
    assert {o.round for o in RunFolder(tmp_path / "outer").observations()} == {1}


def test_clients_that_are_sent_something_else_each_as_lists_without_names(tmp_path) -> None:
    names = list(Small().state_dict())

    class Personal(FedAvg):
        def configure_train(self, server_round, arrays, config, grid):
            for message in super().configure_train(server_round, arrays, config, grid):
                node = message.metadata.dst_node_id
                own = ArrayRecord([np.asarray(a.numpy() + 0.001 * (node - 1000)) for a in arrays.values()])
                yield Message(RecordDict({"arrays": own, "config": config}), node, "train")

    def unnamed(message: Message, client: int, round: int) -> Message:
        values = message.content["arrays"].to_numpy_ndarrays()
        state = {name: torch.tensor(value) for name, value in zip(names, values, strict=True)}
        trained = trained_state(state, client, round)
        content = {"arrays": ArrayRecord([np.asarray(trained[name]) for name in names]), "m": metrics(client)}
        return Message(RecordDict(content), reply_to=message)

    federate(
        Wiretap(Personal(), tmp_path / "tap", attack=ILRG(), model=Small(), task=TASK), client_app(unnamed)
    )
    folder = RunFolder(tmp_path / "tap")
    assert not folder.faults()
    first = [o for o in folder.observations() if o.round == 1]
    starts = [float(o.sent["0"].flatten()[0]) for o in first]
    assert starts[1] - starts[0] == pytest.approx(0.001, rel=1e-3)
    assert [folder.guess(1, 1000 + c).class_counts.tolist() for c in range(CLIENTS)] == [
        counts(c, 1) for c in range(CLIENTS)
    ]


def test_masks_flags_and_unknown_records_break_nothing(tmp_path) -> None:
    class Server(FedAvg):
        def configure_train(self, server_round, arrays, config, grid):
            for message in super().configure_train(
                server_round, ArrayRecord(Masked().state_dict()), config, grid
            ):
                message.content["extra"] = ArrayRecord({"x": Array(np.zeros(3))})
                yield message

    def masked(message: Message, client: int, round: int) -> Message:
        content = {"arrays": message.content["arrays"], "m": MetricRecord({"num-examples": 2.5})}
        return Message(RecordDict(content), reply_to=message)

    federate(Wiretap(Server(), tmp_path / "tap"), client_app(masked))
    seen = list(RunFolder(tmp_path / "tap").observations())
    assert len(seen) == CLIENTS * ROUNDS
    assert all(float(tensor.float().abs().sum()) == 0 for o in seen for tensor in o.received.values())
    assert seen[0].sent["mask"].tolist() == [0.0, float("-inf")]
    assert seen[0].sent["flags"].tolist() == [True, False]
    assert seen[0].num_examples is None  # two and a half examples make no sense


def test_a_live_attack_saves_its_guesses_and_failures_are_faults(tmp_path) -> None:
    folder = RunFolder(tap_with_truth(tmp_path / "tap", attack=Greedy(), model=Small(), task=TASK))
    assert folder.guessed() == [(1, 1000), (1, 1002), (2, 1000), (2, 1002)]
    assert {fault.client for fault in folder.faults()} == {1001}
    assert folder.faults()[0].reason == "the attack failed: ZeroDivisionError: oops"
    assert folder.guess(1, 1000).class_counts.tolist() == counts(0, 1)
    assert folder.summary()["observations"] == CLIENTS * ROUNDS


def test_mistakes_in_a_wiretap_are_named_before_training(tmp_path) -> None:
    for named, words in (
        ({"attack": ILRG()}, "expected a model and a task with it.*Remedy"),
        ({"attack": ILRG(), "model": Small()}, "expected a model and a task with it.*Remedy"),
        (
            {"attack": Crafting(), "model": Small(), "task": TASK},
            "chooses the weights that are sent.*Remedy",
        ),
        ({"model": "Small"}, "model: expected an nn.Module or what makes one, got str.*Remedy: model=Net"),
        (
            {"model": tapped_app.no_model},
            "expected no_model to make an nn.Module, got str.*Remedy: model=Net",
        ),
        (
            {"model": torch.nn.Linear},
            "expected Linear to make a model without arguments, got TypeError.*Remedy",
        ),
        ({"every": 0}, "every: expected a whole number of at least 1, got 0"),
        ({"replies": "letters"}, "replies: expected one of weights, update, gradient"),
        ({"batch_norm": "off"}, "batch_norm: expected eval or train"),
        ({"learning_rate": -1.0}, "learning_rate: expected a number from 0 to 1e.30, got -1.0"),
        ({"local_steps": 2.5}, "local_steps: expected a whole number from 1 to .*, got 2.5"),
    ):
        with pytest.raises(FedsimError, match=words):
            Wiretap(FedAvg(), tmp_path / "tap", **named)
        assert not (tmp_path / "tap").exists()
    with pytest.raises(FedsimError, match=r"expected a strategy of flwr\.serverapp\.strategy, got str"):
        Wiretap("FedAvg", tmp_path / "tap")
    Wiretap(FedAvg(), tmp_path / "tap")
    with pytest.raises(FedsimError, match=r"already holds a run.*Remedy"):
        Wiretap(FedAvg(), tmp_path / "tap")


def test_a_reply_may_be_a_gradient(tmp_path) -> None:
    class Server(FedAvg):
        def configure_train(self, server_round, arrays, config, grid):
            parameters = ArrayRecord({name: p.detach() for name, p in Small().named_parameters()})
            return super().configure_train(server_round, parameters, config, grid)

    def gradient(message: Message, client: int, round: int) -> Message:
        sent = message.content["arrays"].to_torch_state_dict()
        trained = trained_state(Small().state_dict() | sent, client, round)
        slopes = {name: (sent[name] - trained[name]) / RATE for name in sent}
        return Message(RecordDict({"arrays": ArrayRecord(slopes), "m": metrics(client)}), reply_to=message)

    tap = Wiretap(Server(), tmp_path / "tap", replies="gradient", attack=ILRG(), model=Small(), task=TASK)
    federate(tap, client_app(gradient))
    folder = RunFolder(tmp_path / "tap")
    assert {o.kind for o in folder.observations()} == {"gradient"}
    assert folder.guess(1, 1001).class_counts.tolist() == counts(1, 1)


def test_a_second_start_goes_on_counting(tmp_path) -> None:
    tap = Wiretap(FedAvg(), tmp_path / "tap")
    for seed in (0, 1):
        federate(tap, client_app(), seed)
    folder = RunFolder(tmp_path / "tap")
    assert {o.round for o in folder.observations()} == set(range(1, 2 * ROUNDS + 1))
    starts = [next(folder.observations(round)).sent["first.weight"] for round in (1, ROUNDS + 1)]
    assert not torch.equal(*starts)


def generators() -> tuple[object, ...]:
    """Return the states of all global generators."""
    noise = np.random.get_state()  # noqa: NPY002
    return random.getstate(), noise[1].tobytes(), noise[2:], torch.get_rng_state().numpy().tobytes()


def test_the_three_lines_of_the_example_leave_its_weights_as_they_are(tmp_path, monkeypatch) -> None:
    app = ROOT / "examples" / "flower-quickstart"
    monkeypatch.syspath_prepend(str(app))
    monkeypatch.chdir(tmp_path)
    import in_process

    results, start = list[Result](), Strategy.start

    def recorded(self: Strategy, *arguments, **named) -> Result:
        results.append(start(self, *arguments, **named))
        return results[-1]

    monkeypatch.setattr(Strategy, "start", recorded)
    in_process.main()
    lines = (app / "quickstart" / "server_app.py").read_text().splitlines()
    plain = [line for line in lines if "# wiretap:" not in line]
    assert len(lines) - len(plain) == 3
    names: dict[str, object] = {}
    exec("\n".join(plain), names)
    monkeypatch.setattr(in_process.server_app, "app", names["app"])
    monkeypatch.setattr(in_process, "keep_truth", lambda *arguments, **named: None)
    in_process.main()
    tapped, untapped = results
    assert_same(tapped, untapped)
    assert len(RunFolder(tmp_path / "tapped").observed()) == 12


@given(
    seed=draw.integers(0, 1000),
    drawn=draw.tuples(*3 * [draw.integers(0, 700)]),  # 624 numbers make the whole state new
    reseeds=draw.booleans(),
    ends=draw.sampled_from(["a model", "no model", "an error"]),
)
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_factory_may_draw_what_it_likes(tmp_path_factory, seed, drawn, reseeds, ends) -> None:
    def factory() -> object:
        if reseeds:
            random.seed(1), np.random.seed(1), torch.manual_seed(1)  # noqa: NPY002
        [random.random() for _ in range(drawn[0])], np.random.rand(drawn[1]), torch.rand(drawn[2])  # noqa: NPY002
        return {"a model": Small, "no model": str, "an error": lambda: 1 // 0}[ends]()

    random.seed(seed), np.random.seed(seed), torch.manual_seed(seed)  # noqa: NPY002
    before, folder = generators(), tmp_path_factory.mktemp("tap")
    try:
        Wiretap(FedAvg(), folder, model=factory, task=TASK, attack=ILRG())
    except FedsimError:
        assert ends != "a model"
    assert generators() == before
    assert (folder / "config.yaml").exists() == (ends == "a model")


def test_an_app_draws_alike_whatever_its_wiretap_is_made_from(tmp_path) -> None:
    shared = Small()
    ways = (
        None,
        Small,
        tapped_app.make_small,
        lambda: Small(12),
        partial(Small, width=12),
        lambda: shared,
        shared,
    )
    drawn = []
    for number, model in enumerate(ways):
        torch.manual_seed(5)
        Wiretap(FedAvg(), tmp_path / str(number), model=model, task=TASK)
        drawn.append(Small().first.weight)
    assert all(torch.equal(drawn[0], other) for other in drawn)
    assert shared.training  # nor is a model changed that somebody else holds
    assert not shared._forward_pre_hooks


def test_replays_are_told_what_can_be_imported(tmp_path) -> None:
    class Local(Small):
        pass

    cases = [
        (Small, "tapped_app.Small"),
        (Small(), "tapped_app.Small"),
        (lambda: Small(), "tapped_app.Small"),
        (partial(Small, width=7), "tapped_app.Small"),
        (tapped_app.make_small, "tapped_app.make_small"),
        (tapped_app.Small.of_twelve, "tapped_app.Small"),
        (Local, None),
        (Local(), None),
        (lambda: Local(), None),
    ]
    for number, (model, path) in enumerate(cases):
        for task in (TASK, None):
            folder = tmp_path / f"{number}_{task is None}"
            Wiretap(FedAvg(), folder, model=model, task=task)
            assert yaml.safe_load((folder / "config.yaml").read_text())["wiretap"]["model"] == path


def test_importing_and_making_a_wiretap_change_nothing_of_the_process(tmp_path) -> None:
    code = CHANGES_NOTHING.format(folder=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


CHANGES_NOTHING = """
import logging, os, random, signal, sys, warnings
import numpy as np, torch
import flwr.serverapp, flwr.clientapp
from flwr.serverapp.strategy import FedAvg
from torch import nn

def process():
    loggers = dict(logging.Logger.manager.loggerDict) | {{"": logging.root}}
    levels = {{
        name: (logger.level, logger.disabled, logger.propagate, list(logger.handlers), list(logger.filters))
        for name, logger in loggers.items()
        if isinstance(logger, logging.Logger) and not name.startswith("fedsim")
    }}
    cudnn, noise = torch.backends.cudnn, np.random.get_state()
    return {{
        "random": random.getstate(), "numpy": (noise[1].tobytes(), noise[2:]),
        "torch": torch.get_rng_state().tolist(),
        "threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "dtype": torch.get_default_dtype(), "device": torch.get_default_device(),
        "determinism": (torch.are_deterministic_algorithms_enabled(), cudnn.deterministic, cudnn.benchmark),
        "kernels": (torch.backends.mkldnn.enabled, torch.get_float32_matmul_precision(), cudnn.enabled),
        "gradients": torch.is_grad_enabled(), "logging": (levels, logging.root.manager.disable),
        "numpy errors": np.geterr(), "warnings": list(warnings.filters), "folder": os.getcwd(),
        "signals": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)],
        "path": list(sys.path), "hooks": (sys.excepthook, sys.meta_path[:]),
    }}

def changed(before, after):
    return [name for name in before if before[name] != after[name]]

for number, seed in enumerate((1, 2)):  # imported before the app's seed, and after it
    random.seed(seed), np.random.seed(seed), torch.manual_seed(seed)
    torch.set_num_threads(2), torch.set_default_dtype(torch.float64)
    before = process()
    from fedsim.flower.wiretap import Task, Wiretap
    assert not changed(before, process()), changed(before, process())
    surroundings = dict(os.environ)
    task = Task(input_shape=(1, 2, 2), num_classes=3)
    tap = Wiretap(FedAvg(), f"{folder}/{{number}}", model=lambda: nn.Linear(4, 3), task=task)
    assert not changed(before, process()), changed(before, process())
    assert dict(os.environ) == surroundings
"""
