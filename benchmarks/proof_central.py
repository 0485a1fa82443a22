"""Proofs of stolen weights outside of a federation: who accepts which, over Q, R and k, with a figure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from proof_clients import SPOOFS, central_training, global_models

from fedsim.config.parts import part
from fedsim.core.randomness import generator
from fedsim.core.training import Trace, batch_digest
from fedsim.core.types import Weights
from fedsim.defenses.integrity.proof.proof_of_learning import ProofOfLearning
from fedsim.defenses.integrity.proof.sampling import chosen_places
from fedsim.defenses.integrity.proof.verify import recompute
from fedsim.integrity.spoof import spoofed
from fedsim.integrity.training import CentralTraining
from fedsim.integrity.verify import batches_at, judged

STEPS, PROOFS, INTERVALS = 40, 2, (1, 5)
PAPER = {"widen": 0.0, "strict": False}
SETTINGS: dict[str, dict] = {
    "Q=1, R=0": PAPER | {"random": 0},
    "Q=1, R=1": PAPER | {"random": 1},
    "Q=1, R=5": PAPER | {"random": 5},
    "Q=5, R=5": PAPER | {"top": 5, "random": 5},
    "R=all": PAPER | {"detection": 1.0},
    "bound, R=1": {"random": 1},
    "default": {},
}
SKIPPED = ("forger", "inverse_gradient")  # minutes each; they are in the table of clients


def central(seed: int, challenges: int, figure: Path | None = None, only: Sequence[str] = ()) -> None:
    """Every spoof over Q, R, k: a proof is done again once, at every place, and challenged many times."""
    names = only or [name for name in SPOOFS if name not in SKIPPED]
    print(f"\nstolen weights, {STEPS} steps, rate .1: % accepted, {challenges} challenges, {PROOFS} proofs")
    print("| spoof | k | " + " | ".join(SETTINGS) + " |")
    rows = dict[tuple[str, int], list[float]]()
    stolen = global_models(seed + 50)
    victims = [(central_training(seed + n, STEPS), stolen[-1 - n]) for n in range(PROOFS)]
    for name in names:
        for every in INTERVALS:
            made = [Looked.at(training, name, every, stolen) for training, stolen in victims]
            rows[name, every] = [
                sum(one.accepted(how, challenges) for one in made) / PROOFS for how in SETTINGS.values()
            ]
            shown = " | ".join(f"{100 * share:.0f}" for share in rows[name, every])
            print(f"| {name} | {every} | {shown} |", flush=True)
    if figure is not None:
        draw(rows, figure)


@dataclass(frozen=True, kw_only=True, eq=False)
class Looked:
    """A spoofed proof, and what a verifier who looks at everything finds."""

    trace: Trace
    epoch: int
    every: int
    far: dict[int, float]  # how far every interval ends from true; infinite: it names other data
    refused: dict[bool, bool]  # by what it says alone, whatever is drawn; for strict verifiers and others

    @classmethod
    def at(cls, training: CentralTraining, name: str, every: int, stolen: Weights) -> "Looked":
        """Make the proof, and look at it."""
        sealed, claim = spoofed(training, part("client", name), every, stolen)
        assert claim.trace is not None
        trace, model, reveal = claim.trace, training.fresh(0), batches_at(training)
        far, refused = dict[int, float](), dict[bool, bool]()
        for place in range(len(trace.checkpoints) - 1):
            span = trace.span(place)
            batches = reveal(list(span), [trace.indices[step] for step in span])
            told = [batch_digest(batch) for batch in batches] == [trace.digests[step] for step in span]
            far[place] = recompute(trace, place, model, batches, "l2") if told else float("inf")
        for strict in (True, False):
            audit = ProofOfLearning(every=every, top=0, random=1, strict=strict)
            verdict = judged(sealed, training, audit, generator(0))
            refused[strict] = not verdict.accepted and verdict.check not in ("step", "bits", "data")
        return cls(trace=trace, epoch=training.epoch, every=every, far=far, refused=refused)

    def accepted(self, settings: dict, challenges: int) -> float:
        """Return the share of challenges that it passes."""
        audit = ProofOfLearning(every=self.every, **settings)
        if self.refused[audit.how.strict]:
            return 0.0
        look = replace(audit.how, epoch=self.epoch)
        limit = 0.0 if look.strict else look.delta  # bits, on this machine
        drawn = [chosen_places(self.trace, look, generator(n, "challenge")) for n in range(challenges)]
        return sum(all(self.far[place] <= limit for place in places) for places in drawn) / challenges


def draw(rows: dict[tuple[str, int], list[float]], path: Path) -> None:
    """One row a spoof and k, one column a verifier; dark is accepted."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    values = torch.tensor(list(rows.values()))
    drawing, axes = pyplot.subplots(figsize=(7, 0.19 * len(rows) + 1.2), layout="constrained")
    axes.imshow(values, cmap="Reds", vmin=0, vmax=1, aspect="auto")
    axes.set_xticks(range(len(SETTINGS)), SETTINGS, fontsize=7)
    axes.xaxis.tick_top()
    axes.set_yticks(range(len(rows)), [f"{name}, k={every}" for name, every in rows], fontsize=6)
    for row, line in enumerate(values.tolist()):
        for column, share in enumerate(line):
            color = "white" if share > 0.6 else "black"
            axes.text(column, row, f"{100 * share:.0f}", ha="center", va="center", fontsize=6, color=color)
    axes.set_title("% of challenges in which a proof of stolen weights is accepted", fontsize=8)
    drawing.savefig(path, metadata={"Date": None})
