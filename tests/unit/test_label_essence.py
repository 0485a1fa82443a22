"""What each label attack does that the others do not: cases of which its essential step decides the outcome.

The model is one linear layer, so an image is its own embedding, and every case can be computed by hand.
"""

import pytest
import torch
from torch import Tensor, nn

from fedsim.attacks.privacy.labels import rlu
from fedsim.attacks.privacy.labels.bias_corrected import BiasCorrected
from fedsim.attacks.privacy.labels.gradinversion import GradInversion
from fedsim.attacks.privacy.labels.idlg import IDLG
from fedsim.attacks.privacy.labels.ilrg import ILRG
from fedsim.attacks.privacy.labels.ilrg_pooled import ILRGPooled
from fedsim.attacks.privacy.labels.ilrg_public import ILRGPublic
from fedsim.attacks.privacy.labels.rlg import RLG
from fedsim.attacks.privacy.labels.rlu import RLU
from fedsim.attacks.privacy.labels.soteria_rows import SoteriaRows
from fedsim.core.training import Batch, sgd_step
from fedsim.core.types import Observation, PublicImages, Task

CLASSES, SIDE = 4, 2
TASK = Task(input_shape=(1, SIDE, SIDE), num_classes=CLASSES)
COUNTS = [5, 2, 9, 0]
LABELS = torch.repeat_interleave(torch.arange(CLASSES), torch.tensor(COUNTS))


def linear(weight: Tensor, bias: Tensor | None = None) -> nn.Module:
    model = nn.Sequential(nn.Flatten(), nn.Linear(weight.shape[1], len(weight)))
    with torch.no_grad():
        model[1].weight.copy_(weight)
        model[1].bias.copy_(torch.zeros(len(weight)) if bias is None else bias)
    return model.eval()


def random_model(seed: int) -> nn.Module:
    """A model as sure of itself as a trained one, and as often wrong as an untrained one."""
    random = torch.Generator().manual_seed(seed)
    return linear(2 * torch.randn(CLASSES, SIDE**2, generator=random), torch.randn(CLASSES, generator=random))


def as_images(rows: Tensor) -> Tensor:
    return rows.view(-1, 1, SIDE, SIDE)


def update_of(model: nn.Module, images: Tensor, labels: Tensor, steps: int, rate: float) -> Observation:
    """Return the update of some steps, each on the whole batch."""
    sent = {name: p.detach().clone() for name, p in model.named_parameters()}
    local = linear(sent["1.weight"], sent["1.bias"])
    for _ in range(steps):
        sgd_step(local, Batch(images=images, labels=labels), rate)
    return Observation(
        round=1,
        client=0,
        sent=sent,
        received={name: p.detach() - sent[name] for name, p in local.named_parameters()},
        kind="update",
        learning_rate=rate,
        local_steps=steps,
        num_examples=len(labels),
    )


def test_idlg_adds_up_a_row_and_gradinversion_takes_its_smallest_entry() -> None:
    model, rows = random_model(0), [[-1.0, 3, 0, 0], [-3, 1, 0, 0], [1, 0, 0, 2], [-2, 1, 1, -1]]
    seen = Observation(
        round=1,
        client=0,
        sent={name: p.detach() for name, p in model.named_parameters()},
        received={"1.weight": torch.tensor(rows), "1.bias": torch.zeros(CLASSES)},
        kind="gradient",
    )
    assert IDLG().run(model, TASK, [seen]).class_presence.tolist() == [False, True, False, True]
    assert GradInversion().run(model, TASK, [seen]).class_presence.tolist() == [True, True, False, True]


def test_rlg_separates_classes_where_signs_say_nothing(observe) -> None:
    random = torch.Generator().manual_seed(0)
    task = Task(input_shape=(1, 4, 4), num_classes=8)
    model = linear(0.1 * torch.randn(8, 16, generator=random))
    images = torch.randn(3, 1, 4, 4, generator=random)  # negative entries, as after SiLU
    present = [c in (1, 4, 6) for c in range(8)]
    seen = observe(model, images, torch.tensor([1, 4, 6]))
    assert RLG().run(model, task, [seen]).class_presence.tolist() == present
    for signs in (IDLG(), GradInversion()):
        assert signs.run(model, task, [seen]).class_presence.tolist() != present


def test_ilrg_reads_an_embedding_of_its_own_for_each_class(observe) -> None:
    """Every class errs only towards class 3, which is absent: its row is its own, and so is its quotient."""
    missed = torch.tensor([0.1, 0.3, 0.6])  # the probability that goes to class 3, class by class
    weight = torch.full((CLASSES, CLASSES), -20.0)
    weight[3] = 0
    weight[range(3), range(3)] = ((1 - missed) / missed).log()
    model, images = linear(weight), as_images(torch.eye(CLASSES)[LABELS])
    seen = observe(model, images, LABELS)
    guess = ILRG().run(model, TASK, [seen])
    assert guess.class_counts.tolist() == COUNTS
    assert torch.allclose(guess.embeddings[:3], torch.eye(CLASSES)[:3], atol=1e-4)
    assert torch.allclose(guess.probabilities[:3, 3], missed, atol=1e-4)
    assert ILRGPooled().run(model, TASK, [seen]).class_counts.tolist() != COUNTS  # one embedding for all


def test_ilrg_extrapolates_no_further_than_it_is_told(observe) -> None:
    """Class 1 is as frequent as the model expects: its bias gradient nearly vanishes, and noise is left."""
    random = torch.Generator().manual_seed(1)
    counts = torch.tensor([8, 4, 3, 1])
    labels = torch.repeat_interleave(torch.arange(CLASSES), counts)
    images = as_images(1 + 0.1 * torch.randn(16, CLASSES, generator=random))
    model = linear(torch.randn(CLASSES, SIDE**2, generator=random) - 0.01 * torch.eye(CLASSES))
    with torch.no_grad():  # such that the mean probability of class 1 is a quarter, its share
        for _ in range(200):
            mean = model(images).softmax(dim=1).mean(dim=0)
            model[1].bias[1] += float((0.25 / mean[1]).log())
    seen = observe(model, images, labels)
    assert abs(float(seen.received["1.bias"][1])) < 1e-6
    assert ILRG().run(model, TASK, [seen]).class_counts.tolist() == counts.tolist()
    far = ILRG(max_amplification=float("inf")).run(model, TASK, [seen])
    near = ILRG().run(model, TASK, [seen])
    assert float(far.embeddings[1].abs().max()) > 10 > float(near.embeddings[1].abs().max())


@pytest.mark.parametrize("seed", range(5))
def test_pooled_is_exact_where_all_embeddings_are_one(observe, seed: int) -> None:
    model = random_model(seed)
    embedding = torch.rand(SIDE**2, generator=torch.Generator().manual_seed(seed))
    images = as_images(embedding.expand(len(LABELS), -1))
    guess = ILRGPooled().run(model, TASK, [observe(model, images, LABELS)])
    assert guess.class_counts.tolist() == COUNTS
    assert torch.allclose(guess.embeddings, embedding.expand(CLASSES, -1), atol=1e-4)


@pytest.mark.parametrize("seed", range(10))
def test_bias_corrected_gives_one_example_after_another(observe, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (16,), generator=random)
    model = linear(0.1 * torch.randn(CLASSES, SIDE**2, generator=random))
    seen = observe(model, torch.rand(16, 1, SIDE, SIDE, generator=random), labels)
    left = seen.received["1.bias"].double().tolist()
    impact = sum(entry for entry in left if entry < 0) / 16
    counts = [int(entry < 0) for entry in left]
    left = [entry - impact * count for entry, count in zip(left, counts, strict=True)]
    while sum(counts) < 16:
        lowest = left.index(min(left))
        counts[lowest] += 1
        left[lowest] -= impact
    assert BiasCorrected().run(model, TASK, [seen]).class_counts.tolist() == counts


def one_picture_a_class(seed: int) -> PublicImages:
    rows = torch.rand(CLASSES, SIDE**2, generator=torch.Generator().manual_seed(seed))
    return PublicImages(images=as_images(rows), labels=torch.arange(CLASSES))


@pytest.mark.parametrize("seed", range(5))
def test_labelled_public_images_tell_what_the_model_makes_of_each_class(observe, seed: int) -> None:
    model, public = random_model(seed), one_picture_a_class(seed)
    seen = observe(model, public.images[LABELS], LABELS)
    assert ILRGPublic(public=public).run(model, TASK, [seen]).class_counts.tolist() == COUNTS


def test_unlabelled_public_images_tell_less(observe) -> None:
    model, public = random_model(4), one_picture_a_class(4)
    seen = observe(model, public.images[LABELS], LABELS)
    guess = ILRGPublic(public=public, labelled=False).run(model, TASK, [seen])
    assert guess.class_counts.tolist() != COUNTS


def test_public_images_stand_in_for_a_bias_gradient_that_was_kept_back(observe) -> None:
    model, embedding = random_model(0), torch.tensor([0.2, 0.9, 0.4, 0.7])
    public = PublicImages(images=as_images(embedding), labels=torch.tensor([1]))
    seen = observe(model, as_images(embedding.expand(len(LABELS), -1)), LABELS)
    seen.received["1.bias"].zero_()
    assert ILRGPublic(public=public).run(model, TASK, [seen]).class_counts.tolist() == COUNTS


@pytest.mark.parametrize("seed", range(5))
def test_public_images_are_asked_all_along_the_path_of_an_update(seed: int) -> None:
    model, public = random_model(seed), one_picture_a_class(seed)
    update = update_of(model, public.images[LABELS], LABELS, steps=10, rate=0.1)
    assert ILRGPublic(public=public).run(model, TASK, [update]).class_counts.tolist() == COUNTS


def test_public_images_at_the_start_alone_miss_where_the_path_leads() -> None:
    model, public = random_model(0), one_picture_a_class(0)
    update = update_of(model, public.images[LABELS], LABELS, steps=10, rate=0.1)
    assert ILRGPublic(public=public, points=1).run(model, TASK, [update]).class_counts.tolist() != COUNTS


@pytest.mark.parametrize("seed", range(5))
def test_rlu_simulates_how_the_last_layer_moves(seed: int) -> None:
    """The layer is the model, so the simulation is exact once the proportions in it are."""
    model, public = random_model(seed), one_picture_a_class(seed)
    update = update_of(model, public.images[LABELS], LABELS, steps=10, rate=0.2)
    assert (
        RLU(public=public, samples=1, iterations=20).run(model, TASK, [update]).class_counts.tolist()
        == COUNTS
    )
    once = RLU(public=public, samples=1, iterations=1).run(model, TASK, [update])
    assert once.class_counts.tolist() != COUNTS  # simulated with equal proportions


@pytest.mark.parametrize("seed", range(5))
def test_rlu_draws_embeddings_as_spread_as_the_public_ones(observe, seed: int) -> None:
    """The softmax of a mean is not the mean of softmaxes: at least 32 of 256 would be misplaced."""
    random, model, means = torch.Generator().manual_seed(seed), random_model(seed), one_picture_a_class(seed)

    def spread(labels: Tensor) -> Tensor:
        return means.images[labels] + torch.randn(len(labels), 1, SIDE, SIDE, generator=random)

    public_labels, labels = torch.arange(CLASSES).repeat(64), LABELS.repeat(16)
    public = PublicImages(images=spread(public_labels), labels=public_labels)
    seen = observe(model, spread(labels), labels)
    counts = RLU(public=public).run(model, TASK, [seen]).class_counts
    assert int((counts - labels.bincount(minlength=CLASSES)).abs().sum()) / 2 <= 20


def test_rlu_draws_as_many_embeddings_of_each_class_with_its_mean_and_deviation(observe, monkeypatch) -> None:
    random, model, means = torch.Generator().manual_seed(0), random_model(0), one_picture_a_class(0)
    labels = torch.arange(CLASSES).repeat(500)
    widths = torch.linspace(0.5, 4, CLASSES)[labels].view(-1, 1, 1, 1)
    images = means.images[labels] + widths * torch.randn(len(labels), 1, SIDE, SIDE, generator=random)
    seen, told = observe(model, means.images[LABELS], LABELS), list[Tensor]()

    def simulated(layer: object, drawn: Tensor, proportions: Tensor, steps: int, rate: float) -> Tensor:
        told.append(drawn)
        return torch.full((CLASSES, CLASSES), 1 / CLASSES, dtype=torch.float64)

    monkeypatch.setattr(rlu, "simulate_confidences", simulated)
    RLU(public=PublicImages(images=images, labels=labels), samples=900, iterations=2).run(model, TASK, [seen])
    assert [len(told), *told[0].shape] == [2, CLASSES, 900, SIDE**2]
    assert torch.allclose(told[0].std(dim=1).mean(dim=1).float(), torch.linspace(0.5, 4, CLASSES), rtol=0.05)
    assert torch.allclose(told[0].mean(dim=1).float(), means.images.flatten(1), atol=0.7)


def test_soteria_rows_are_the_embeddings_up_to_their_size(observe) -> None:
    embeddings = 1 + torch.eye(CLASSES)
    model = linear(torch.zeros(CLASSES, SIDE**2))
    one = observe(model, as_images(embeddings[2]), torch.tensor([2]))
    found = SoteriaRows().run(model, TASK, [one]).embeddings[2]
    assert torch.allclose(found / found.norm(), embeddings[2] / embeddings[2].norm())
