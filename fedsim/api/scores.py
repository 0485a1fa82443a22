"""How good a guess is: every metric of what it claims, beside what a guess without the gradient gets."""

import html
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fedsim.api.tables import html_table, text_table
from fedsim.config.parts import parts
from fedsim.core.errors import FedsimError, in_words, printable, suggestion
from fedsim.core.inputs import Inputs
from fedsim.core.interfaces import Metric
from fedsim.core.types import Observation, Reconstruction, Score, Truth, form_problem
from fedsim.data.blind_batches import Rules
from fedsim.lab.scoring import blind_prior, with_features, with_flat_features
from fedsim.metrics.baselines import scored
from fedsim.storage.scores import as_figure

# Those of the default experiment, and the image error; presets such as psnr_best6 are asked for by name.
METRICS = (
    "leacc",
    "lnacc",
    "irec",
    "probability_cosine",
    "embedding_cosine",
    "embedding_error",
    "psnr",
    "ssim",
    "lpips",
    "image_error",
    "exact_sentences",
    "token_accuracy",
    "rouge1",
    "rouge2",
    "bag_of_words",
    "exact_rows",
    "exact_cells",
)
HEADING = ("metric", "value", "baseline")


@dataclass(frozen=True)
class Scores:
    """Scores of one guess. Prints as a table; `scores["psnr"].value` is a figure of it."""

    scores: tuple[Score, ...]
    unscored: Mapping[str, str] = field(default_factory=dict)  # what was claimed and not scored, and why

    def __getitem__(self, name: str) -> Score:
        names = [score.metric for score in self.scores]
        if name not in names:
            reason = f" ({self.unscored[name]})" if name in self.unscored else ""
            hint = suggestion(name, names)
            raise FedsimError(f"expected one of {', '.join(names) or 'none'}, got {name!r}{reason}.{hint}")
        return self.scores[names.index(name)]

    def __iter__(self) -> Iterator[Score]:
        return iter(self.scores)

    def __len__(self) -> int:
        return len(self.scores)

    def __str__(self) -> str:
        table = text_table(HEADING, self._rows()) if self.scores else "nothing was claimed"
        return "\n".join([table, *(printable(line) for line in self._notes())])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        table = html_table(HEADING, self._rows()) if self.scores else "<p>nothing was claimed</p>"
        return table + "".join(f"<p>{html.escape(printable(line))}</p>" for line in self._notes())

    def _rows(self) -> list[tuple[str, str, str]]:
        return [(score.metric, as_figure(score.value), as_figure(score.baseline)) for score in self.scores]

    def _notes(self) -> list[str]:
        return [f"{name}: not scored: {reason}" for name, reason in self.unscored.items()]


def score(
    guess: Reconstruction,
    truth: Truth | Tensor,
    labels: Tensor | None = None,
    *,
    metrics: Sequence[Metric | str] = METRICS,
    model: nn.Module | None = None,
    observation: Observation | None = None,
    public: Tensor | None = None,
    inputs: Inputs | None = None,
) -> Scores:
    """Score a guess against the private images and labels, by every metric of what it claims.

    model, observation: that the guess was made from; only claims about features need them.
    public: images that everybody has. Without them the baseline of images is a grey picture, which is
        often easy to beat: with them it is the best of grey, their mean, and they themselves.
    inputs: what a data set's task says of private tokens or rows; None: they are images.
    """
    if isinstance(truth, Tensor):
        if labels is None:
            raise FedsimError("score: expected labels, got none. Remedy: score(guess, images, labels).")
        private, labels = truth.detach().cpu(), labels.detach().cpu()
        truth = Truth(round=1, client=0, images=private, labels=labels, inputs=inputs)
    elif labels is not None:
        raise FedsimError("score: a Truth has its labels. Remedy: score(guess, truth).")
    unscored = dict[str, str]()
    features = [name for name in ("embeddings", "probabilities") if getattr(guess, name) is not None]
    if features and model is not None and observation is not None:
        if problem := form_problem(observation.sent, dict(model.named_parameters())):
            raise FedsimError(f"score: the model does not fit what was sent: {problem}")
        truth = with_features(model, observation, guess, truth)
    elif features and truth.embeddings is None and truth.probabilities is None:
        reason = "of the model's features. Remedy: score(..., model=model, observation=observation)."
        unscored = dict.fromkeys(features, reason)
    if not len(truth.labels):
        raise FedsimError("score: expected at least one private image, got none.")
    if public is not None and public.shape[1:] != truth.images.shape[1:]:
        raise FedsimError(
            f"public: expected images (N, {', '.join(map(str, truth.images.shape[1:]))}) as the private ones "
            f"are, got {tuple(public.shape)}."
        )
    classes = 1 + max(int(truth.labels.max()), *(len(known) - 1 for known in _by_class(guess)))
    prior = blind_prior(
        truth,
        rules=Rules(),
        frequencies=(1 / classes,) * classes,
        public=[] if public is None else [public.detach().cpu()],
    )
    prior = with_flat_features(prior, guess)
    scores = list[Score]()
    for metric in parts("metric", metrics):
        try:
            found = scored(metric, guess, truth, prior)
        except Exception as error:  # the other metrics still count
            unscored[type(metric).__name__] = in_words(error)
            continue
        if found is not None:
            scores.append(found)
    return Scores(tuple(scores), unscored)


def _by_class(guess: Reconstruction) -> list[Tensor]:
    """Return what a guess says of every class."""
    claims = (guess.class_counts, guess.class_presence, guess.probabilities)
    return [torch.zeros(1), *(claim for claim in claims if claim is not None)]
