"""What every figure of a report is: in words, with unit, direction, definition and paper.

A metric says this of itself (its class: title, unit, highest, bounded, paper; definition: its docstring),
and a run keeps that in its summary, so that reports of others' metrics need none of their code.
"""

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from fedsim.core.interfaces import Metric
from fedsim.metrics.bag_of_words import BagOfWords
from fedsim.metrics.certified import Certified
from fedsim.metrics.embedding_cosine import EmbeddingCosine
from fedsim.metrics.embedding_error import EmbeddingError
from fedsim.metrics.exact_cells import ExactCells
from fedsim.metrics.exact_rows import ExactRows
from fedsim.metrics.exact_sentences import ExactSentences
from fedsim.metrics.image_error import ImageError
from fedsim.metrics.irec import IRec
from fedsim.metrics.leacc import LeAcc
from fedsim.metrics.lnacc import LnAcc
from fedsim.metrics.lpips import LPIPS
from fedsim.metrics.probability_cosine import ProbabilityCosine
from fedsim.metrics.psnr import PSNR
from fedsim.metrics.recovered import Recovered
from fedsim.metrics.rouge import Rouge
from fedsim.metrics.ssim import SSIM
from fedsim.metrics.token_accuracy import TokenAccuracy


@dataclass(frozen=True, kw_only=True)
class MetricFacts:
    """What a figure is."""

    name: str  # in files
    title: str
    unit: str = ""
    highest: bool = True  # more is a better attack; of a cost: more is better
    bounded: bool = False  # between 0 and 1
    definition: str = ""
    paper: str = ""
    leaks: bool = True  # it measures what an attack got; False: a cost

    @property
    def with_unit(self) -> str:
        """The title with its unit."""
        return f"{self.title} ({self.unit})" if self.unit else self.title

    @property
    def direction(self) -> str:
        """Which way is worse for whom."""
        way = "higher" if self.highest else "lower"
        return f"{way} leaks more" if self.leaks else f"{way} is better"

    @property
    def in_full(self) -> str:
        """All of it in a line, for whoever points at the title."""
        said = f"{self.name}: {self.definition}".rstrip(".: ")
        more = [
            words
            for words in (f"unit: {self.unit}" if self.unit else "", self.direction, self.paper)
            if words
        ]
        return ". ".join([said, *more]) + "."

    def said(self, value: float) -> str:
        """Return a value as a sentence has it."""
        if self.bounded and self.unit.startswith("share"):
            return f"{_plain(100 * value, 1)} %"
        return f"{_plain(value, 1)} dB" if self.unit.startswith("dB") else _plain(value, 3)

    @property
    def resolution(self) -> float:
        """A smaller difference is none: half a point of 100, a tenth of a dB."""
        return 0.1 if self.unit.startswith("dB") else 0.005 if self.bounded else 0.0

    def better(self, value: float, other: float, chance: float = 0.0) -> bool:
        """Say whether a value is better than another beyond resolution and chance.

        Beyond a baseline of 0 anything is: who guesses blindly never gets there.
        """
        gap = (value - other) * (1 if self.highest else -1)
        return gap > max(1e-6 * max(1.0, abs(other)), min(self.resolution, abs(other)), chance)


def _plain(value: float, digits: int) -> str:
    """Return a number without zeros at its end; what rounds to nothing says how small it is."""
    if value and abs(value) < 0.5 * 10**-digits:
        return f"{value:.1e}"
    text = f"{value:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def facts_of(metric: Metric, name: str) -> MetricFacts:
    """Return what a metric says of itself, under the name of its scores."""
    best = getattr(metric, "best", None)
    own = type(metric).__doc__  # not its base's
    return MetricFacts(
        name=name,
        title=(metric.title or _words(name)) + (f", best {best} of a batch" if metric.title and best else ""),
        unit=metric.unit,
        highest=metric.highest,
        bounded=metric.bounded,
        definition=inspect.cleandoc(own).partition("\n\n")[0].replace("\n", " ") if own else "",
        paper=metric.paper,
    )


def _cost(name: str, title: str, unit: str, definition: str, **more: Any) -> MetricFacts:
    return MetricFacts(name=name, title=title, unit=unit, definition=definition, leaks=False, **more)


OURS: dict[str, Metric] = {
    "leacc": LeAcc(),
    "lnacc": LnAcc(),
    "irec": IRec(),
    "probability_cosine": ProbabilityCosine(),
    "embedding_cosine": EmbeddingCosine(),
    "embedding_error": EmbeddingError(),
    "image_error": ImageError(),
    "psnr": PSNR(),
    "ssim": SSIM(),
    "lpips": LPIPS(),
    "certified": Certified(),
    "recovered": Recovered(),
    "exact_sentences": ExactSentences(),
    "token_accuracy": TokenAccuracy(),
    "rouge1": Rouge(),
    "rouge2": Rouge(kind="rouge2"),
    "rougel": Rouge(kind="rougeL"),
    "bag_of_words": BagOfWords(),
    "exact_rows": ExactRows(),
    "exact_cells": ExactCells(),
    "exact_categories": ExactCells(columns="categories"),
    "psnr_best6": PSNR(best=6),
    "ssim_best6": SSIM(best=6),
    "lpips_best6": LPIPS(best=6),
}
POL = "Jia et al., Proof-of-Learning: Definitions and Practice (S&P 2021)"
COSTS = (
    _cost(
        "accuracy",
        "test accuracy",
        "share of test examples",
        "Share of the test examples that the global model classifies right after the last round.",
        bounded=True,
    ),
    _cost(
        "loss",
        "test loss",
        "nats",
        "Mean cross-entropy of the global model on the test examples.",
        highest=False,
    ),
    _cost(
        "bytes",
        "size of a reply",
        "bytes",
        "What a client sends in a round, as its defenses leave it.",
        highest=False,
    ),
    _cost(
        "epsilon",
        "privacy budget",
        "epsilon",
        "Differential privacy that the whole run promises each client's examples.",
        highest=False,
    ),
    _cost(
        "client_epsilon",
        "privacy budget of a client",
        "epsilon",
        "Differential privacy that the whole run promises a client, had it as many other examples "
        "instead (delta 1e-5): of clip and then Gaussian noise.",
        highest=False,
    ),
    *(
        _cost(
            f"{name}_prior_alone",
            f"{OURS[name].title} by the prior alone",
            OURS[name].unit,
            f"{name} of what the attack's learnt prior makes of a batch without its gradient.",
            highest=OURS[name].highest,
            bounded=OURS[name].bounded,
        )
        for name in ("psnr", "ssim", "lpips")
    ),
    _cost("seconds", "time", "seconds", "From first round to last score, by the clock.", highest=False),
    _cost(
        "rounds_to_target",
        "rounds to the target",
        "rounds",
        "Rounds until the test accuracy reached federation.target_accuracy.",
        highest=False,
    ),
    _cost(
        "seconds_to_target",
        "time to the target",
        "seconds",
        "Seconds until the test accuracy reached federation.target_accuracy.",
        highest=False,
    ),
    _cost(
        "noticed",
        "crafted weights noticed",
        "share of clients asked",
        "Share of the clients, over all rounds, that saw something crafted and refused to answer.",
        bounded=True,
    ),
    _cost(
        "detection",
        "cheats caught",
        "share of their proofs",
        "Share of the malicious clients' proofs that the audit rejected.",
        bounded=True,
        paper=POL,
    ),
    _cost(
        "false_rejects",
        "honest proofs rejected",
        "share of their proofs",
        "Share of the honest clients' proofs that the audit rejected.",
        bounded=True,
        highest=False,
        paper=POL,
    ),
    _cost(
        "recomputed",
        "steps done again",
        "share of steps",
        "Share of the claimed training steps that the verifier did again.",
        bounded=True,
        highest=False,
        paper=POL,
    ),
    _cost(
        "audit_bytes",
        "bytes for the audit",
        "bytes a reply",
        "What a client sends for the audit, beside its reply: the proof, and the data that it has to show.",
        highest=False,
        paper=POL,
    ),
)
KNOWN = {name: facts_of(metric, name) for name, metric in OURS.items()} | {cost.name: cost for cost in COSTS}


def told(metrics: Mapping[str, Metric]) -> dict[str, dict[str, Any]]:
    """Return what a summary keeps: the facts of metrics that are not ours, by the names of their scores."""
    return {name: asdict(facts_of(metric, name)) for name, metric in metrics.items() if name not in KNOWN}


def facts(name: str, kept: Mapping[str, Any] | None = None) -> MetricFacts:
    """Return what a figure is: by our own table, by what a run kept, or its name alone."""
    if name in KNOWN:
        return KNOWN[name]
    found = {_key(other): value for other, value in (kept or {}).items()}.get(_key(name))
    if not isinstance(found, Mapping):
        return MetricFacts(name=name, title=_words(name))
    kinds = {field.name: bool if field.type in ("bool", bool) else str for field in fields(MetricFacts)}
    own: dict[str, Any] = {key: kinds[key](value) for key, value in found.items() if key in kinds}
    own = {"title": _words(name)} | own | {"name": name}
    return MetricFacts(**own)


def legend(names: Iterable[str], kept: Mapping[str, Any] | None = None) -> dict[str, MetricFacts]:
    """Return the facts of figures, by name."""
    return {name: facts(name, kept) for name in names}


def _key(name: str) -> str:
    """Return a name so that a class is found by the name of its scores: HitRate, hit_rate."""
    return name.replace("_", "").casefold()


def _words(name: str) -> str:
    return name.replace("_", " ").strip() or name
