"""A client's one local round: always by its behaviour, defenses inside, a trace only for an audit."""

import dataclasses
from pathlib import Path

import pytest
import torch

from fedsim.core.errors import FedsimError
from fedsim.core.interfaces import Behaviour, Defense
from fedsim.core.training import batch_gradient, load_weights
from fedsim.flower.local_round import local_round, local_work

AVERAGED = ("federation=fedavg", "federation.local_steps=3")


def setup_of(experiment, folder: Path):
    folder.mkdir()
    setup = experiment.prepare_clients(folder)()
    return setup, {name: p.detach().clone() for name, p in setup.model.named_parameters()}


class Doubles(Defense):
    """Doubles every gradient, of a batch that is turned around."""

    def on_batch(self, images, labels, generator):
        return images.flip(0), labels.flip(0)

    def on_gradient(self, gradient, step, generator):
        return {name: 2 * tensor for name, tensor in gradient.items()}


def test_a_trace_is_recorded_for_an_audit_alone(small, tmp_path) -> None:
    setup, sent = setup_of(small(*AVERAGED, "attack=none"), tmp_path / "plain")
    plain = local_round(setup, sent, 1, 0).claim
    assert plain.trace is None
    setup, sent = setup_of(
        small(*AVERAGED, "attack=none", "audit=proof_of_learning", "audit.every=2"), tmp_path / "audited"
    )
    audited = local_round(setup, sent, 1, 0).claim
    assert len(audited.trace.checkpoints) == 3  # before steps 0 and 2, and after the last
    assert all(torch.equal(plain.update[name], audited.update[name]) for name in sent)
    last = audited.trace.checkpoints[-1]
    assert all(torch.equal(audited.update[name], last[name] - sent[name]) for name in sent)


def test_a_gradient_is_asked_of_the_behaviour_too_with_the_defenses_inside(small, tmp_path) -> None:
    setup, sent = setup_of(small(), tmp_path / "run")
    asked = []

    class Watched(Behaviour):
        def train(self, work):
            asked.append((work.kind, work.every))
            return super().train(work)

    setup = dataclasses.replace(setup, behaviours=(Watched(),) * 3, defenses=(Doubles(),))
    done = local_round(setup, sent, 1, 2)
    assert asked == [("gradient", None)]
    load_weights(setup.model, sent)
    expected, loss = batch_gradient(setup.model, done.truth.images.flip(0), done.truth.labels.flip(0))
    assert all(torch.equal(done.claim.update[name], 2 * tensor) for name, tensor in expected.items())
    assert done.claim.loss == loss
    assert done.disclosed == {"num_examples": 6}  # a gradient has no learning rate


def test_the_truth_is_what_a_client_has_whatever_it_shows(small, tmp_path) -> None:
    setup, sent = setup_of(small(*AVERAGED), tmp_path / "run")
    honest = local_round(setup, sent, 1, 0)

    class Blank(Behaviour):
        def train(self, work):
            claim = super().train(work)
            shown = [dataclasses.replace(b, images=b.images * 0, labels=b.labels * 0) for b in claim.batches]
            return dataclasses.replace(claim, batches=tuple(shown))

    cheating = local_round(dataclasses.replace(setup, behaviours=(Blank(),) * 3), sent, 1, 0)
    assert torch.equal(cheating.truth.images, honest.truth.images)
    assert torch.equal(cheating.truth.labels, honest.truth.labels)
    unseen = dataclasses.replace(setup.federation, attacked_rounds=[2])
    assert local_round(dataclasses.replace(setup, federation=unseen), sent, 1, 0).truth is None


def test_a_client_reads_no_images_but_its_own(small, tmp_path) -> None:
    setup, sent = setup_of(small(), tmp_path / "run")
    work = local_work(setup, sent, 1, 0)
    assert len(work.batch(setup.shares[0]).labels) == len(setup.shares[0])
    mixed = torch.cat([setup.shares[0][:2], setup.shares[1][:1]])
    with pytest.raises(FedsimError, match="no images but its own"):
        work.batch(mixed)
