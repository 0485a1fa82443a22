"""Contracts of behaviour over every yaml: what defenses, clients, audits and forgeries really do."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import fedsim
from fedsim.config.parts import part
from fedsim.core.challenges import Challenge
from fedsim.core.interfaces import Behaviour
from fedsim.core.randomness import generator
from fedsim.core.training import Batch
from fedsim.data.tiny import tiny
from fedsim.models.softmax import softmax
from fedsim.testing import check_audit, check_client, check_defense, check_forgery, small_challenge

CONF = Path(__file__).parents[2] / "conf"


def names(group: str) -> list[str]:
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


@pytest.mark.parametrize("name", names("defense"))
def test_a_defense_changes_what_a_server_sees_and_not_its_input(name: str) -> None:
    check_defense(fedsim.defense(name))


def test_an_honest_client_claims_what_it_did() -> None:
    check_client(Behaviour())


@pytest.mark.parametrize("name", names("client"))
def test_a_malicious_client_claims_what_it_did_not_do(name: str) -> None:
    few = {"forgery": {"candidates": 2}} if name == "forger" else {}
    check_client(part("client", name, **few))


@pytest.mark.parametrize("name", sorted(set(names("audit")) - {"none"}))
@pytest.mark.parametrize("every", [1, 3])
def test_an_audit_accepts_the_honest_and_nobody_else(name: str, every: int) -> None:
    check_audit(part("audit", name, every=every))


def black_image() -> Challenge:
    """Two tiny images, one of them black: without a bias it has no gradient, and any class will do."""
    data = tiny(values=2)
    torch.manual_seed(0)
    model = softmax(data.task)
    model.output.bias = None

    def examples(indices: Tensor) -> Batch:
        return Batch(images=data.train.batch(indices).double(), labels=data.train.labels[indices])

    everything, own = torch.arange(len(data.train.labels)), torch.tensor([0, 20])
    return Challenge(
        model=model.double(),
        batch=examples(own),
        unwanted=torch.tensor([0]),
        task=data.task,
        owned=everything[~torch.isin(everything, own)],
        examples=examples,
        generator=generator(0),
    )


def pooled_images() -> Challenge:
    """A step of a convolution with a pooling, which passes over some units."""
    torch.manual_seed(0)
    layers = (nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(18, 4))
    return small_challenge(size=12, model=nn.Sequential(*layers))


CHALLENGES = {"brute_force": black_image, "invisible": pooled_images}


@pytest.mark.parametrize("name", names("forgery"))
def test_a_forgery_keeps_to_its_domain_and_near_the_gradient(name: str) -> None:
    few = {"greedy": {"candidates": 5}}.get(name, {})
    check_forgery(part("forgery", name, **few), CHALLENGES.get(name, small_challenge))
