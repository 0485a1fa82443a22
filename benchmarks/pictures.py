"""Pictures behind convolutions: mean PSNR beside the baseline and the prior alone, with intervals.

python benchmarks/pictures.py --model lenet5 --size 4 --batches 10 [--attack NAME] [KEY=VALUE ...]
Settings are the run's. Every batch has a model of its own, untrained; images are CIFAR-10's (embedded).
"""

import argparse
import logging
import statistics
import time

import torch

from fedsim.config import build
from fedsim.config.compose import compose
from fedsim.core.training import batch_gradient
from fedsim.core.types import Observation, Truth
from fedsim.data.blind_batches import rules_of
from fedsim.data.public import labelled, shuffled
from fedsim.lab.scoring import PUBLIC, blind_prior, prior_alone_scores, with_prior_alone
from fedsim.metrics.baselines import scored
from fedsim.metrics.psnr import PSNR
from fedsim.models.batch_norm import set_batch_norm

FIRST_SEED = 20_000
DEVIATIONS = 1.96  # standard errors of an interval


def interval(values: list[float]) -> str:
    spread = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")
    return f"{statistics.fmean(values):5.2f} +- {DEVIATIONS * spread:.2f}"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--model", default="lenet5")
    options.add_argument("--size", type=int, default=4)
    options.add_argument("--batches", type=int, default=10)
    options.add_argument("--attack", default="feature_inversion")
    options.add_argument("--seed", type=int, default=FIRST_SEED)
    options.add_argument("--batch-norm", default="eval")
    options.add_argument("settings", nargs="*")
    chosen = options.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.INFO)
    named = [f"attack={chosen.attack}", f"model={chosen.model}", "data=cifar10_small"]
    found: dict[str, list[float]] = {"attack": [], "baseline": [], "prior alone": [], "CPU seconds": []}
    for seed in range(chosen.seed, chosen.seed + chosen.batches):
        experiment = build.experiment(compose([*named, "name=benchmark", f"seed={seed}", *chosen.settings]))
        model, data = experiment.model.eval(), build.dataset_of(compose(named))
        set_batch_norm(model, chosen.batch_norm)
        random = torch.Generator().manual_seed(seed)
        places = torch.randperm(len(data.train.labels), generator=random)[: chosen.size]
        images, labels = data.train.batch(places), data.train.labels[places]
        seen = Observation(
            round=1,
            client=0,
            sent={name: p.detach().clone() for name, p in model.named_parameters()},
            received=batch_gradient(model, images, labels)[0],
            kind="gradient",
            num_examples=chosen.size,
            batch_norm=chosen.batch_norm,
        )
        started = time.process_time()
        guess = experiment.attack.run(model, data.task, [seen])
        taken = time.process_time() - started
        truth = Truth(round=1, client=0, images=images, labels=labels)
        public = labelled(data.test, shuffled(data.test)[:PUBLIC]).images
        prior = blind_prior(
            truth,
            rules=rules_of(experiment.federation),
            frequencies=(0.1,) * 10,
            mean=data.task.mean,
            public=[public],
        )
        score = scored(PSNR(), guess, truth, with_prior_alone(prior, guess))
        assert score is not None
        assert score.baseline is not None
        found["attack"].append(score.value)
        found["baseline"].append(score.baseline)
        found["prior alone"] += [s.value for s in prior_alone_scores([PSNR()], guess, truth)]
        found["CPU seconds"].append(taken)
        shown = ", ".join(f"{name} {values[-1]:.2f}" for name, values in found.items() if values)
        print(f"seed {seed}: {shown}; images " + " ".join(f"{v:.1f}" for v in score.per_example), flush=True)
    line = "; ".join(f"{name} {interval(values)}" for name, values in found.items() if values)
    print(f"{chosen.attack} {chosen.model} K={chosen.size} x {chosen.batches}: {line}")


if __name__ == "__main__":
    main()
