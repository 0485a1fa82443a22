"""The iLRG paper's tables 3 and 4: how well its approximations hold while a model trains.

Ma et al. (ICLR 2023), appendix D. Approximation 1: within a class, the gradient row is the product of the
mean bias gradient and the mean embedding. Approximation 2: row i of the batch gradient comes from class i
alone. Embedding: the quotient against the true class mean; Soteria's is the row itself. The paper (VGG-16 on
CIFAR-100) finds embeddings best when untrained, and approximation 2 worse than 1; both show here in the
errors. Cosines stay low with ten classes: a class whose bias gradient nearly cancels has a wild quotient.
"""

import torch
from labels import trained
from torch import Tensor
from torch.nn import functional

from fedsim.data.cifar10_small import cifar10_small
from fedsim.models.last_linear import last_features
from fedsim.models.lenet5 import lenet5

BATCHES, SIZE = 20, 24


def errors(name: str, guessed: Tensor, true: Tensor) -> str:
    relative = (guessed - true).norm() / true.norm()
    cosine = functional.cosine_similarity(guessed, true, dim=1).mean()
    mean_square = (guessed - true).square().mean()
    return f"  {name:<22} MSE {mean_square:.2e}   MRE {relative:8.3f}   CosSim {cosine:6.3f}"


def main() -> None:
    torch.set_num_threads(1)
    data = cifar10_small()
    for steps in (0, 300, 1000):
        model, random = trained(data, lenet5, steps, 0), torch.Generator().manual_seed(0)
        weights = {name: p.detach() for name, p in model.named_parameters()}
        kept: dict[str, list[Tensor]] = {}
        for _ in range(BATCHES):
            indices = torch.randperm(len(data.train.labels), generator=random)[:SIZE]
            labels = data.train.labels[indices]
            images = data.train.batch(indices)
            embeddings, logits = last_features(model, data.task.input_shape, weights, images)
            wrong = logits.softmax(dim=1) - functional.one_hot(labels, data.task.num_classes)
            rows, biases = wrong.T @ embeddings / SIZE, wrong.mean(dim=0)
            for label in torch.unique(labels).tolist():
                own = labels == label
                mean, bias = embeddings[own].mean(dim=0), wrong[own, label].mean()
                for name, value in {
                    "row": (wrong[own, label, None] * embeddings[own]).mean(dim=0),
                    "product": bias * mean,
                    "bias": biases[label][None],
                    "own bias": (own.float().mean() * bias)[None],
                    "embedding": mean,
                    "quotient": rows[label] / biases[label],
                    "soteria": rows[label],
                }.items():
                    kept.setdefault(name, []).append(value)
        values = {name: torch.stack(found) for name, found in kept.items()}
        print(f"after {steps} steps")
        print(errors("approximation 1", values["product"], values["row"]))
        print(errors("approximation 2", values["own bias"], values["bias"]))
        print(errors("embedding, iLRG", values["quotient"], values["embedding"]))
        print(errors("embedding, Soteria", values["soteria"], values["embedding"]))


if __name__ == "__main__":
    main()
