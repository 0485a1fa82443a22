"""The bars of the exact family as data: which attack on which model, how many examples, what is asked."""

import functools
from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from fedsim.core.types import Task
from fedsim.models.lenet5 import lenet5
from fedsim.models.mlp import mlp
from fedsim.models.resnet import resnet
from fedsim.models.resnet_cifar import resnet_cifar

Make = Callable[[Task], nn.Module]
WIDE: Make = functools.partial(mlp, depth=2, width=1000)
WIDE3: Make = functools.partial(mlp, width=1000)
SIGMOID: Make = functools.partial(mlp, activation="sigmoid")
RESNET20: Make = functools.partial(resnet_cifar, depth=20)


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One row: what is attacked, and what it should come to."""

    attack: str
    model: Make
    size: int  # examples of a batch
    asked: str
    data: str = "mnist"  # cifar, hundred or thousand (classes)
    steps: int = 0  # of plain SGD before
    accuracy: float = 0.0  # on the training images, trained up to, with momentum
    local: int = 1  # steps of an update
    rate: float | None = None  # of an update; None: a gradient
    repeated: bool = False  # the same batch in every local step
    noise: float = 0.0
    rounding: str = ""  # float16, bfloat16, or levels of a quantisation


def bars() -> dict[str, Bar]:
    """Return all rows by name."""
    found = dict[str, Bar]()
    for data in ("mnist", "cifar"):
        for size, asked in ((64, "all in 9 of 10"), (128, "share .95"), (256, "as far as it goes")):
            found[f"two_layer_{data}_{size}"] = Bar(
                attack="first_layer_peeling", model=WIDE, size=size, data=data, asked=asked
            )
    found["two_layer_trained_64"] = Bar(
        attack="first_layer_peeling", model=WIDE, size=64, steps=300, asked="share .9"
    )
    found["fcn3_trained_32"] = Bar(attack="peeling", model=mlp, size=32, steps=300, asked="all in 8 of 10")
    for size in (64, 72, 96):
        found[f"fcn3_{size}"] = Bar(attack="peeling", model=mlp, size=size, asked="all in 8 of 10")
    found["fcn3_wide_128"] = Bar(attack="peeling", model=WIDE3, size=128, asked="all in 8 of 10")
    found["fcn3_sigmoid_24"] = Bar(attack="peeling", model=SIGMOID, size=24, asked="all")
    for name, make in (("lenet5", lenet5), ("resnet20", RESNET20)):
        for size in (24, 48):
            found[f"head_{name}_{size}"] = Bar(
                attack="head_peeling", model=make, size=size, data="hundred", asked="counts in 19 of 20"
            )
            found[f"head_{name}_trained_{size}"] = Bar(
                attack="head_peeling",
                model=make,
                size=size,
                data="hundred",
                accuracy=0.25,
                asked="counts in 17 of 20",
            )
    found["head_lenet5_4"] = Bar(
        attack="head_peeling", model=lenet5, size=4, data="cifar", asked="counts in 19 of 20"
    )
    found["head_lenet5_trained_4"] = Bar(
        attack="head_peeling", model=lenet5, size=4, data="cifar", accuracy=0.62, asked="counts in 17 of 20"
    )
    for attack in ("head_peeling", "labels"):
        found[f"thousand_{attack}_256"] = Bar(
            attack=attack, model=resnet, size=256, data="thousand", asked="counts exact, 60 CPU s"
        )
    fedavg = functools.partial(Bar, attack="fedavg_peeling", model=mlp)
    for rate in (0.01, 0.05, 0.1):
        found[f"fedavg_5x8_{rate:g}"] = fedavg(size=8, local=5, rate=rate, asked="all in 8 of 10")
    found["fedavg_5x16"] = fedavg(size=16, local=5, rate=0.05, asked="all in 5 of 10")
    found["fedavg_10x8"] = fedavg(size=8, local=10, rate=0.05, asked="all in 5 of 10")
    found["fedavg_one_batch_16"] = fedavg(size=16, local=5, rate=0.05, repeated=True, asked="all in 8 of 10")
    found["fedavg_trained_5x8"] = fedavg(size=8, local=5, rate=0.05, steps=100, asked="share .6")
    for steps in (1000, 3000):
        for size in (8, 16, 24):
            for attack in ("labels", "ilrg"):
                found[f"{attack}_trained_{steps}_{size}"] = Bar(
                    attack=attack, model=lenet5, size=size, steps=steps, asked="LnAcc .95"
                )
    for noise in (1e-7, 1e-6, 1e-5, 1e-4, 1e-3):
        found[f"noise_{noise:g}"] = Bar(attack="peeling", model=mlp, size=8, noise=noise, asked="the bound")
    for kind in ("float16", "bfloat16", "16", "256"):
        found[f"rounded_{kind}"] = Bar(attack="peeling", model=mlp, size=8, rounding=kind, asked="the bound")
    return found
