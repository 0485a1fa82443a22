"""`fedsim new`: file, yaml and test of something of one's own, to start from."""

from pathlib import Path

import click

from fedsim.core.errors import FedsimError

ATTACK = '''\
"""One line on how it reads private data out of a gradient.

What leaks: the labels of a batch.
Paper: none.
Assumes: a gradient, a last layer with a bias, num_examples disclosed.
Fails: on anything else.
"""

from collections.abc import Sequence

import torch
from torch import nn

from fedsim import Attack, FedsimError, Observation, Reconstruction, Task


class {name}(Attack):
    """What the user gets, in one line: `fedsim list` shows it."""

    def __init__(self, *, strength: float = 1.0) -> None:
        self.strength = strength

    def run(self, model: nn.Module, task: Task, observations: Sequence[Observation]) -> Reconstruction:
        """Guess the batch from what the server saw of it; `model` holds the weights that were sent."""
        (seen,) = observations
        if seen.num_examples is None:
            raise FedsimError("{name}: expected num_examples. Remedy: federation.disclose=[num_examples].")
        last = [name for name, _ in model.named_parameters()][-1]
        bias = seen.received[last]  # the gradient of the last bias: negative where a class is
        if bias.shape != (task.num_classes,):
            raise FedsimError("{name}: expected a last layer with a bias. Remedy: another model.")
        share = (-self.strength * bias).clamp(min=0)
        counts = (share / share.sum().clamp(min=1e-12) * seen.num_examples).round().long()
        return Reconstruction(class_counts=counts, class_presence=counts > 0)
'''
DEFENSE = '''\
"""One line on what it changes before a reply leaves the client.

Paper: none.
"""

from torch import Generator

from fedsim import Defense, Weights


class {name}(Defense):
    """What the user gets, in one line: `fedsim list` shows it."""

    def __init__(self, *, scale: float = 0.5) -> None:
        self.scale = scale

    def on_reply(self, reply: Weights, kind: str, generator: Generator) -> Weights:
        """Return what leaves the client in place of its gradient or update."""
        return {{name: tensor * self.scale for name, tensor in reply.items()}}
'''
METRIC = '''\
"""One line on what it measures.

Paper: none.
"""

from fedsim import Metric, Reconstruction, Score, Truth


class {name}(Metric):
    """What the user gets, in one line: `fedsim list` shows it."""

    def score(self, guess: Reconstruction, truth: Truth) -> Score | None:
        """Score a guess, or return None when it claims nothing of the kind; its baseline comes of itself."""
        if guess.class_counts is None:
            return None
        true = truth.labels.bincount(minlength=len(guess.class_counts))
        return Score(metric="{file}", value=float((guess.class_counts == true).float().mean()))
'''
TEST = '''\
"""The contract that fedsim holds its own to."""

from {file} import {name}

from fedsim.testing import check_{kind}


def test_{file}_keeps_the_contract() -> None:
    check_{kind}({name}())
'''
SOURCES = {"attack": ATTACK, "defense": DEFENSE, "metric": METRIC}
SETTINGS = {"attack": "strength: 1.0\n", "defense": "scale: 0.5\n", "metric": ""}


@click.command("new", short_help="begin an attack, defense or metric of your own")
@click.argument("kind", type=click.Choice(list(SOURCES)))
@click.argument("name")
def command(kind: str, name: str) -> None:
    """Write NAME.py, conf/KIND/NAME.yaml and test_NAME.py into this folder, for a start that works."""
    if not name.isidentifier() or not name.islower():
        raise FedsimError(f"new: expected a name such as my_attack, in lower case, got {name!r}")
    words = {"file": name, "name": "".join(part.title() for part in name.split("_")), "kind": kind}
    package = f"# @package {kind}.{name}\n" if kind != "attack" else ""
    files = {
        Path(f"{name}.py"): SOURCES[kind].format(**words),
        Path("conf", kind, f"{name}.yaml"): f"{package}_target_: {name}.{words['name']}\n{SETTINGS[kind]}",
        Path(f"test_{name}.py"): TEST.format(**words),
    }
    for path in files:
        if path.exists():
            raise FedsimError(f"{path} is there already. Remedy: another name: nothing is written over.")
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:  # the user's own: never written over
            file.write(text)
        print(path)
    chosen = name if kind == "attack" else f"[{name}]"
    print(f"try it: fedsim --config-dir conf {kind}={chosen}")
