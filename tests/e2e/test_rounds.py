"""Whole runs on small federations: what is written, who sees what, what happens when clients fail."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from flwr.app import ArrayRecord, Message, RecordDict

from fedsim.config import build
from fedsim.config.compose import compose
from fedsim.config.replay import compose_replay
from fedsim.core.errors import FedsimError
from fedsim.core.interfaces import Attack, Defense
from fedsim.core.types import Reconstruction
from fedsim.lab.experiment import Experiment, replay, run
from fedsim.lab.record import GaveUp
from fedsim.storage.runfolder import RunFolder


@pytest.mark.drawn
def test_a_run_folder_holds_everything(play_small) -> None:
    folder = play_small("federation.disclose=[num_examples,loss]")
    summary = folder.summary()
    assert summary["status"] == "complete"
    assert set(summary["metrics"]) == {"leacc", "lnacc", "irec", "bytes", "accuracy", "loss"}
    assert set(summary["baseline"]) == {"leacc", "lnacc", "irec"}
    assert (summary["rounds"], summary["clients"], summary["seed"], summary["faults"]) == (2, 3, 0, 0)
    assert {"fedsim", "torch", "flwr"} <= set(summary["versions"])
    assert summary["machine"]["threads"] == 1
    assert summary["machine"]["instructions"] == torch.backends.cpu.get_cpu_capability()
    seen = list(folder.observations())
    assert [(o.round, o.client) for o in seen] == [(r, c) for r in (1, 2) for c in range(3)]
    assert all(o.num_examples == 6 and o.loss > 0 and o.learning_rate is None for o in seen)
    scores = folder.scores()
    assert len(scores) == 6 * 4
    mean = sum(row.value for row in scores if row.metric == "lnacc") / 6
    assert summary["metrics"]["lnacc"] == pytest.approx(mean)
    assert [result.round for result in folder.history()] == [0, 1, 2]
    for name in ("config.yaml", "log.txt", "report.html", "model.safetensors", "figures/accuracy.svg"):
        assert (folder.path / name).stat().st_size > 100
    page = (folder.path / "report.html").read_text()
    assert "A malicious server trains softmax on synthetic" in page
    assert "then attacks what it saw with ilrg" in page
    assert page.count("data:image/svg") >= 7
    assert "http" not in page.replace("http://www.w3.org", "")  # self-contained


def test_the_observed_gradient_is_the_gradient_of_the_true_batch(play_small, small) -> None:
    from fedsim.core.training import batch_gradient, load_weights

    folder, model = play_small(), small().model
    for observation in folder.observations():
        truth = folder.truth(observation.round, observation.client)
        load_weights(model, observation.sent)
        gradient, _ = batch_gradient(model, truth.images, truth.labels)
        for name, tensor in gradient.items():
            assert torch.allclose(observation.received[name], tensor, atol=1e-7)


def test_the_server_applies_the_mean_gradient(play_small) -> None:
    seen = list(play_small().observations())
    first, second = seen[0].sent, seen[3].sent
    for name, sent in first.items():
        mean = sum(o.received[name] for o in seen[:3]) / 3
        assert torch.allclose(second[name], sent - 0.1 * mean, atol=1e-6)


def test_fedavg_replies_with_the_update_of_its_local_steps(play_small, small) -> None:
    from fedsim.core.training import batch_gradient, load_weights

    rules = ("federation=fedavg", "federation.local_steps=3", "federation.local_lr=0.2")
    folder, model = play_small(*rules), small(*rules).model
    observation = next(folder.observations())
    truth = folder.truth(1, 0)
    told = (observation.kind, observation.learning_rate, observation.local_steps, observation.num_examples)
    assert told == ("update", 0.2, 3, 18)
    weights = dict(observation.sent)
    for images, labels in zip(truth.images.split(6), truth.labels.split(6), strict=True):
        load_weights(model, weights)
        gradient, _ = batch_gradient(model, images, labels)
        weights = {name: weights[name] - 0.2 * gradient[name] for name in weights}
    for name, new in weights.items():
        assert torch.allclose(observation.received[name], new - observation.sent[name], atol=1e-6)


@pytest.mark.drawn
def test_training_learns_and_the_page_shows_what_leaks_meanwhile(play_small) -> None:
    rules = ("federation.rounds=40", "federation.server_lr=0.5", "federation.attacked_clients=[0]")
    folder = play_small(*rules, "federation.attacked_rounds=[1,4,40]")
    history = folder.history()
    assert history[-1].accuracy > 0.9 > history[0].accuracy
    drawn = (folder.path / "figures" / "learnt_lnacc.svg").read_text()
    assert "test accuracy of the model that was sent" in drawn
    assert "Scores as the model learns" in (folder.path / "report.html").read_text()


def test_only_attacked_rounds_and_clients_are_kept(play_small) -> None:
    folder = play_small("federation.attacked_rounds=[2]", "federation.attacked_clients=[1]")
    assert [(o.round, o.client) for o in folder.observations()] == [(2, 1)]
    assert folder.guessed() == [(2, 1)]
    assert len(list((folder.path / "truth").iterdir())) == 1


def test_the_same_seed_gives_the_same_run_and_another_seed_another(play_small) -> None:
    first, again, other = (play_small(f"seed={s}", folder=f) for s, f in ((1, "a"), (1, "b"), (2, "c")))
    assert first.scores() == again.scores()
    for left, right in zip(first.observations(), again.observations(), strict=True):
        assert all(torch.equal(left.received[name], right.received[name]) for name in left.received)
    left, right = next(first.observations()), next(other.observations())
    assert any(not torch.equal(left.received[name], right.received[name]) for name in left.received)


def test_sampled_clients_only(play_small) -> None:
    folder = play_small("federation.clients=10", "federation.participation=0.3", "federation.rounds=4")
    by_round = {r: [o.client for o in folder.observations() if o.round == r] for r in range(1, 5)}
    assert all(len(clients) == 3 for clients in by_round.values())
    assert len({tuple(clients) for clients in by_round.values()}) > 1


def test_defenses_act_in_the_order_written(play_small) -> None:
    clipped = play_small("defense=[noise,clip]", "defense.clip.max_norm=0.01", folder="clip last")
    noisy = play_small("defense=[clip,noise]", "defense.clip.max_norm=0.01", folder="noise last")

    def norm(folder: RunFolder) -> float:
        received = next(folder.observations()).received
        return float(torch.cat([tensor.flatten() for tensor in received.values()]).norm())

    assert norm(clipped) == pytest.approx(0.01, rel=1e-4)
    assert norm(noisy) > 0.05


def test_a_checkpoint_continues_where_a_run_ended(play_small) -> None:
    first = play_small(folder="first")
    second = play_small(f"model.checkpoint={first.path / 'model.safetensors'}", folder="second")
    assert second.history()[0].loss == pytest.approx(first.history()[-1].loss, rel=1e-5)
    with pytest.raises(FedsimError, match=r"model\.safetensors.*Remedy: a checkpoint of the same model"):
        play_small(f"model.checkpoint={first.path / 'model.safetensors'}", "model=mlp", folder="third")


def test_a_replay_attacks_saved_observations_without_training(play_small, small, tmp_path: Path) -> None:
    source = play_small()
    again = replay(small(), source, tmp_path / "again")
    assert again.scores() == source.scores()
    other = replay(small("attack=idlg"), source, tmp_path / "other")
    assert {row.metric for row in other.scores()} == {"leacc", "bytes"}
    assert other.history() == source.history()
    assert not (other.path / "observations").exists()
    with pytest.raises(FedsimError, match="holds no observations"):
        replay(small(), other, tmp_path / "nothing")


def test_an_attack_gets_the_model_with_what_was_sent_in_runs_and_replays(small, tmp_path) -> None:
    class Recall(Attack):
        def run(self, model, task, observations):
            (seen,) = observations
            assert all(torch.equal(p, seen.sent[name]) for name, p in model.named_parameters())
            assert torch.get_num_threads() == 1
            return Reconstruction(class_counts=torch.tensor([6, 0, 0, 0]))

    experiment = dataclasses.replace(small(), attack=Recall())
    folder = run(experiment, tmp_path / "run")
    assert replay(experiment, folder, tmp_path / "replay").scores() == folder.scores()


@pytest.mark.drawn
def test_a_model_that_diverges_keeps_a_valid_summary_and_report(play_small) -> None:
    folder = play_small("federation.server_lr=1e38", "federation.rounds=1")
    assert folder.summary()["metrics"]["loss"] is None
    assert (folder.path / "report.html").exists()


def test_a_replay_keeps_the_runs_own_attack_but_for_what_is_named(play_small) -> None:
    source = play_small("attack.max_amplification=7")
    config = compose_replay(source.config_text(), ["attack.rounding=nearest"]).config
    assert (config.attack.max_amplification, config.attack.rounding) == (7, "nearest")
    config = compose_replay(source.config_text(), ["attack=ilrg"]).config
    assert (config.attack.max_amplification, config.attack.rounding) == (5.0, "repair")
    assert (config.choices.data, config.federation.clients) == ("synthetic", 3)


def test_an_earlier_run_is_never_written_over(play_small) -> None:
    play_small()
    with pytest.raises(FedsimError, match=r"already holds a run.*Remedy"):
        play_small()


class Fails(Defense):
    """Client 1 misbehaves in a chosen way; the others are honest."""

    def __init__(self, way: str, clients: tuple[int, ...]) -> None:
        self.way, self.clients, self.calls = way, clients, 0

    def on_reply(self, reply, kind, generator):
        client, self.calls = self.calls % 3, self.calls + 1  # inline: clients come in order
        if client not in self.clients:
            return reply
        bias = reply["output.bias"]
        if self.way == "raises":
            raise ValueError("disk on fire")
        if self.way == "missing":
            return {"output.weight": reply["output.weight"]}
        bad = {
            "nan": bias * float("nan"),
            "infinity": bias / 0,
            "shape": bias[:-1],
            "type": bias.to(torch.int32),
        }
        return dict(reply) | {"output.bias": bad[self.way]}


def with_defense(experiment: Experiment, defense: Defense) -> Experiment:
    def prepare(folder: Path) -> Callable:
        setup = build.prepare_clients(experiment.config_text, folder)()
        return lambda: dataclasses.replace(setup, defenses=(defense,))

    return dataclasses.replace(experiment, prepare_clients=prepare)


@pytest.mark.parametrize(
    ("way", "reason"),
    [
        ("raises", "the client failed: ValueError: disk on fire"),
        ("missing", "missing tensor 'output.bias'"),
        ("nan", "tensor 'output.bias' holds NaN"),
        ("infinity", "tensor 'output.bias' holds an infinity"),
        ("shape", "tensor 'output.bias': expected shape (4,), got (3,)"),
        ("type", "tensor 'output.bias': expected torch.float32, got torch.int32"),
    ],
)
def test_a_bad_client_is_reported_by_name_and_reason_and_left_out(small, tmp_path, way, reason) -> None:
    folder = run(with_defense(small(), Fails(way, (1,))), tmp_path / "run")
    assert folder.summary()["status"] == "complete"
    assert [(o.round, o.client) for o in folder.observations()] == [(1, 0), (1, 2), (2, 0), (2, 2)]
    rows = [row for row in folder.scores() if row.metric == "fault"]
    assert [(row.round, row.client) for row in rows] == [(1, 1), (2, 1)]
    assert all(reason in row.error for row in rows)
    assert reason in (folder.path / "log.txt").read_text()
    page = (folder.path / "report.html").read_text()
    assert reason.split("'")[0] in page
    assert folder.summary()["faults"] == 2


def test_a_client_that_says_nothing_is_reported(small, tmp_path, monkeypatch) -> None:
    from fedsim.flower.engines.inline import InlineGrid

    answer = InlineGrid._answer

    def sometimes(self, message, seconds):
        if message.metadata.message_type == "train" and message.metadata.dst_node_id == 1001:
            return None if message.metadata.group_id == "1" else Message(RecordDict(), reply_to=message)
        return answer(self, message, seconds)

    monkeypatch.setattr(InlineGrid, "_answer", sometimes)
    folder = run(small(), tmp_path / "run")
    assert [fault.client for fault in folder.faults()] == [1, 1]
    assert "no reply within" in folder.faults()[0].reason
    assert "expected an ArrayRecord 'arrays'" in folder.faults()[1].reason


def test_a_round_without_a_valid_reply_ends_the_run_and_keeps_what_there_was(small, tmp_path) -> None:
    class SecondRound(Fails):
        def on_reply(self, reply, kind, generator):
            self.clients = () if self.calls < 3 else (0, 1, 2)
            return super().on_reply(reply, kind, generator)

    with pytest.raises(FedsimError, match=r"round 2: none of 3 clients.*client 0: tensor.*NaN.*Remedy"):
        run(with_defense(small(), SecondRound("nan", ())), tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    assert [(o.round, o.client) for o in folder.observations()] == [(1, 0), (1, 1), (1, 2)]
    assert folder.summary()["reason"].startswith("round 2")
    assert [row.round for row in folder.scores()] == [2, 2, 2]
    assert "did not complete" in (folder.path / "report.html").read_text()


class Broken(Attack):
    """Fails on client 0, or is interrupted there."""

    def __init__(self, error: BaseException, clients: tuple[int, ...]) -> None:
        self.error, self.clients = error, clients

    def run(self, model, task, observations):
        if observations[-1].client in self.clients:
            raise self.error
        return Reconstruction(class_counts=torch.tensor([6, 0, 0, 0]))


def test_an_attack_that_fails_on_one_client_goes_on_with_the_others(small, tmp_path) -> None:
    experiment = dataclasses.replace(small(), attack=Broken(ZeroDivisionError("oops"), (0,)))
    folder = run(experiment, tmp_path / "run")
    failed = [row for row in folder.scores() if row.metric == "fault"]
    assert [(row.client, row.error) for row in failed] == [
        (0, "the attack failed: ZeroDivisionError: oops")
    ] * 2
    assert folder.guessed() == [(1, 1), (1, 2), (2, 1), (2, 2)]


def test_an_attack_that_fails_everywhere_is_an_error(small, tmp_path) -> None:
    experiment = dataclasses.replace(small(), attack=Broken(FedsimError("no bias. Remedy: one"), (0, 1, 2)))
    with pytest.raises(FedsimError, match=r"failed on all 6 observations.*no bias\. Remedy: one"):
        run(experiment, tmp_path / "run")


def test_an_interrupted_run_keeps_its_scores_and_report(small, tmp_path) -> None:
    experiment = dataclasses.replace(small(), attack=Broken(KeyboardInterrupt(), (2,)))
    with pytest.raises(KeyboardInterrupt):
        run(experiment, tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    assert folder.summary()["status"] == "interrupted"
    assert folder.guessed() == [(1, 0), (1, 1)]
    assert len(folder.scores()) == 8
    assert (folder.path / "report.html").exists()


def test_a_crafted_broadcast_reaches_clients_and_its_form_is_checked(small, tmp_path) -> None:
    class Zero(Attack):
        def craft(self, model, task, round, weights):
            return {name: torch.zeros_like(tensor) for name, tensor in weights.items()}

        def run(self, model, task, observations):
            return Reconstruction()

    class ZeroInPlace(Zero):
        def craft(self, model, task, round, weights):
            for tensor in weights.values():
                tensor.zero_()
            return weights

    from fedsim.core.training import batch_gradient, load_weights

    for name, attack in (("new", Zero()), ("in place", ZeroInPlace())):
        folder, model = run(dataclasses.replace(small(), attack=attack), tmp_path / name), small().model
        for seen in folder.observations():
            assert all(float(tensor.abs().sum()) == 0 for tensor in seen.sent.values())
            truth = folder.truth(seen.round, seen.client)
            load_weights(model, seen.sent)
            gradient, _ = batch_gradient(model, truth.images, truth.labels)
            assert all(torch.allclose(seen.received[key], gradient[key], atol=1e-7) for key in gradient)

    class Deform(Zero):
        def craft(self, model, task, round, weights):
            return {name: tensor[:1] for name, tensor in weights.items()}

    with pytest.raises(FedsimError, match=r"Deform\.craft changed the model's form"):
        run(dataclasses.replace(small(), attack=Deform()), tmp_path / "second")


def test_truth_never_crosses_a_message(small, tmp_path, monkeypatch) -> None:
    from fedsim.flower.engines.inline import InlineGrid

    replies: list[Message] = []
    answer = InlineGrid._answer
    monkeypatch.setattr(InlineGrid, "_answer", lambda *args: replies.append(answer(*args)) or replies[-1])
    folder = run(small(), tmp_path / "run")
    trained = [reply for reply in replies if "arrays" in reply.content]
    assert len(trained) == 6
    for reply in trained:
        assert set(reply.content) == {"arrays", "disclosed"}
        assert set(reply.content["disclosed"]) == {"num_examples"}
        assert isinstance(reply.content["arrays"], ArrayRecord)
        assert set(reply.content["arrays"]) == {"output.weight", "output.bias"}
    assert json.loads((folder.path / "summary.json").read_text())["status"] == "complete"


def test_the_embedded_default_experiment_meets_its_bar(tmp_path) -> None:
    folder = run(build.experiment(compose([])), tmp_path / "run")
    metrics = folder.summary()["metrics"]
    assert metrics["leacc"] == 1.0
    assert metrics["lnacc"] >= 0.95


@pytest.mark.parametrize(
    ("attack", "model", "words"),
    [
        ("span_matching", "lenet5", "do not enter linear layer"),
        ("stein_exact", "softmax", "does not fit the model"),
    ],
)
def test_an_attack_that_does_not_fit_the_model_gives_up_before_any_training(
    small, tmp_path: Path, attack: str, model: str, words: str
) -> None:
    images = ("data=synthetic", "data.shape=[1,28,28]", f"model={model}", f"attack={attack}")
    with pytest.raises(GaveUp, match=words):
        run(small(*images), tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    assert folder.status == "gave up"
    assert folder.history() == []  # not even the first model was tested
    assert folder.observed() == []
