"""A guess joined with its truth, and beside it what a server could have said without the gradient."""

import copy
import dataclasses
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from fedsim.attacks.privacy.labels.last_layer import class_means
from fedsim.core.inputs import Tokens
from fedsim.core.interfaces import Metric
from fedsim.core.prior import Prior
from fedsim.core.types import Observation, PublicImages, Reconstruction, Score, Truth
from fedsim.data.blind_batches import Rules, blind_batches, rules_of
from fedsim.data.public import labelled, shuffled
from fedsim.metrics.image_matching import GREY
from fedsim.models.batch_norm import set_batch_norm
from fedsim.models.last_linear import last_linear_name, layer_inputs

if TYPE_CHECKING:
    from fedsim.lab.experiment import Experiment

PUBLIC = 200  # of the server's test images, which it has to watch training with


def prior_of(experiment: "Experiment", observation: Observation, truth: Truth) -> Prior:
    """Return what a server knows of a batch without its gradient: rules, task, its own test images."""
    public, frequencies = server_images(experiment)
    given = experiment.attack.public  # what an attack has beside the gradient counts, too
    return blind_prior(
        truth,
        rules=rules_of(experiment.federation),
        frequencies=frequencies,
        clients=len(observation.clients or (observation.client,)),
        mean=experiment.task.mean,
        public=[public.images, *([] if given is None else [given.images])],
    )


@functools.lru_cache(maxsize=1)
def server_images(experiment: "Experiment") -> tuple[PublicImages, tuple[float, ...]]:
    """Return some of the server's test images, and how frequent each class is among all of them.

    The server of an app that was tapped has none that we know of: then every class is as likely.
    """
    labels = experiment.test.labels
    counts = labels[labels >= 0].bincount(minlength=experiment.task.num_classes).double()
    frequencies = tuple((counts / counts.sum() if counts.any() else counts + 1 / len(counts)).tolist())
    return labelled(experiment.test, shuffled(experiment.test)[:PUBLIC]), frequencies


def blind_prior(
    truth: Truth,
    *,
    rules: Rules,
    frequencies: tuple[float, ...],
    clients: int = 1,
    mean: Sequence[float] = (GREY,),
    public: Sequence[Tensor] = (),
) -> Prior:
    """Return the prior of a batch of this size: pictures and counts that need no gradient."""
    shape, number = truth.images.shape[1:], len(truth.labels)
    batches = blind_batches(rules, frequencies, int((truth.labels >= 0).sum()), clients)
    seen = [images for images in public if images.shape[1:] == shape and len(images)]
    own = (
        [] if truth.inputs is None else [g for p in seen or [truth.images[:0]] for g in truth.inputs.blind(p)]
    )
    if isinstance(truth.inputs, Tokens):
        size = len(truth.inputs.vocabulary)
        return Prior(num_examples=number, batches=batches, tokens=own, vocabulary=size)
    pictures = [torch.tensor(level).reshape(1, -1, 1, 1).expand(1, *shape) for level in ((GREY,), mean)]
    for images in seen:
        pictures += [images.mean(dim=0, keepdim=True), images]
    width = 0 if truth.inputs is None else truth.inputs.shape[-1]
    return Prior(num_examples=number, batches=batches, images=pictures + own, vocabulary=width)


def with_features(model: nn.Module, observation: Observation, guess: Reconstruction, truth: Truth) -> Truth:
    """Add what the model sent makes of the private batch, where the guess is of that."""
    if guess.embeddings is None and guess.probabilities is None:
        return truth
    batch = len(truth.images) // (observation.local_steps or 1)  # BatchNorm may look at whole batches
    embeddings, probabilities = _features(model, observation, guess, truth.images, max(1, batch))
    return dataclasses.replace(truth, embeddings=embeddings, probabilities=probabilities)


def with_public_features(
    prior: Prior, experiment: "Experiment", observation: Observation, guess: Reconstruction
) -> Prior:
    """Add what the model sent makes of the server's own images, in the guess's form, and of nothing."""
    prior, (public, _) = with_flat_features(prior, guess), server_images(experiment)
    if not len(public.labels) or (guess.embeddings is None and guess.probabilities is None):
        return prior
    rows, outputs = _features(experiment.model, observation, guess, public.images, len(public.images))
    classes = experiment.task.num_classes
    by_class = [class_means(rows, public.labels, classes)]
    by_example = [rows, rows.mean(dim=0, keepdim=True)]
    return dataclasses.replace(
        prior,
        embeddings=[*prior.embeddings, *(by_example if guess.embedding_layer else by_class)],
        probabilities=[*prior.probabilities, class_means(outputs, public.labels, classes)],
    )


def with_prior_alone(prior: Prior, guess: Reconstruction) -> Prior:
    """Add what a learnt prior of the attack's makes of nothing, and its mean: no leak of the gradient's."""
    if guess.prior_alone is None:
        return prior
    alone = guess.prior_alone
    return dataclasses.replace(prior, images=[*prior.images, alone, alone.mean(dim=0, keepdim=True)])


def prior_alone_scores(metrics: Sequence[Metric], guess: Reconstruction, truth: Truth) -> list[Score]:
    """Score what a learnt prior makes of nothing, as images are scored."""
    if guess.prior_alone is None:
        return []
    alone = Reconstruction(images=guess.prior_alone)
    found = [metric.score(alone, truth) for metric in metrics]
    return [Score(metric=f"{s.metric}_prior_alone", value=s.value) for s in found if s is not None]


def with_flat_features(prior: Prior, guess: Reconstruction) -> Prior:
    """Add vectors that say nothing, in the guess's form: equal entries for a class, zeros for an example."""
    flat = torch.zeros if guess.embedding_layer else torch.ones
    embeddings = [] if guess.embeddings is None else [flat(guess.embeddings.shape)]
    probabilities = [] if guess.probabilities is None else [torch.ones(guess.probabilities.shape)]
    layer = guess.embedding_layer
    return dataclasses.replace(
        prior, embeddings=embeddings, embedding_layer=layer, probabilities=probabilities
    )


def _features(
    model: nn.Module, observation: Observation, guess: Reconstruction, images: Tensor, batch: int
) -> tuple[Tensor, Tensor]:
    """Return what enters the guess's layer, and the softmax, of images at the weights sent."""
    model = copy.deepcopy(model)
    layer = guess.embedding_layer or last_linear_name(model, tuple(images.shape[1:]))
    set_batch_norm(model, observation.batch_norm)
    embeddings, logits = layer_inputs(model, layer, observation.sent, images, batch)
    return embeddings, logits.softmax(dim=1)
