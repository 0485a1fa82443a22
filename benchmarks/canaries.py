"""Epsilon of one local step, as promised and as a server with planted examples measures it.

python benchmarks/canaries.py [--trials 500] [--first SEED]
"""

import argparse

import torch
from torch import nn

import fedsim
from fedsim.core.gaussian_privacy import epsilon_of

SEEDS = 5


def opposed(seed: int) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """A model that a server would choose: at its weights, two labels have opposite gradients."""
    drawn = torch.Generator().manual_seed(seed)
    images, labels = torch.rand(8, 1, 8, 8, generator=drawn), torch.randint(2, (8,), generator=drawn)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    nn.init.zeros_(model[1].weight)
    model[1].bias.data = torch.tensor([0.0, 0.0, *[-20.0] * 8])  # two classes are likely, the others are not
    return model, images, labels


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=500)
    parser.add_argument("--first", type=int, default=0)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print("defense            exact  promised  measured (Gaussian)  measured (any noise)")
    for name, settings, sigma in (
        *(("dp", {"sigma": sigma}, sigma) for sigma in (1.0, 2.0, 4.0)),
        *(("clip, noise", {"sigma": sigma}, sigma) for sigma in (1.0, 4.0)),
    ):
        chosen = [fedsim.defense(part, **(settings if part != "clip" else {})) for part in name.split(", ")]
        found = [
            fedsim.canaries(*opposed(seed), defenses=chosen, trials=asked.trials, seed=seed)
            for seed in range(asked.first, asked.first + SEEDS)
        ]
        assert found[0].promised is not None
        ranges = [
            f"{min(values):.2f} to {max(values):.2f}"
            for values in ([each.gaussian for each in found], [each.least for each in found])
        ]
        exact, promised = epsilon_of(2 / sigma, found[0].delta), found[0].promised
        print(f"{f'{name} {sigma:g}':18} {exact:5.2f} {promised:9.2f}  {ranges[0]:>19}  {ranges[1]:>20}")
        broken = sum(each.broken for each in found)
        print(f"{'':18} promises broken: {broken} of {len(found)}")


if __name__ == "__main__":
    main()
