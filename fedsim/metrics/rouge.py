"""How much of the words of a text is in its guess: the figure of papers on text.

Paper: Lin, ROUGE: A Package for Automatic Evaluation of Summaries (ACL 2004), as torchmetrics computes it.
"""

from fedsim.core.interfaces import Metric
from fedsim.core.settings import one_of
from fedsim.core.types import Reconstruction, Score, Truth
from fedsim.core.vision import load_torchvision
from fedsim.metrics.text_matching import surplus, texts_of

TITLES = {
    "rouge1": "words in common",
    "rouge2": "pairs of words in common",
    "rougeL": "longest common sequence of words",
}
KINDS = tuple(TITLES)


class Rouge(Metric):
    """ROUGE, F-measure: words (1), pairs of words (2) or the longest common sequence (L); 1 is all."""

    bounded = True
    title = "words in common"
    unit = "ROUGE"
    paper = "Lin, ROUGE: A Package for Automatic Evaluation of Summaries (ACL 2004)"

    def __init__(self, *, kind: str = "rouge1") -> None:
        """Choose what is compared."""
        self.kind = one_of("metric.rouge.kind", kind, KINDS)
        self.title = TITLES[kind]

    def score(self, guess: Reconstruction, truth: Truth) -> Score | None:
        """Compare texts as a reader would write them, paired by their tokens."""
        if (found := texts_of(guess, truth)) is None:
            return None
        load_torchvision()  # which torchmetrics imports
        from torchmetrics.functional.text.rouge import rouge_score

        guessed, true, form = found
        values = []
        for one, other in zip(guessed.tolist(), true.tolist(), strict=True):
            text = form.text([token for token in one if token >= 0])
            values.append(
                float(rouge_score([text], [form.text(other)], rouge_keys=self.kind)[f"{self.kind}_fmeasure"])
            )
        value = sum(values) / max(1, len(values)) * surplus(guess, truth)
        return Score(metric=self.kind.lower(), value=value, per_example=tuple(values))
