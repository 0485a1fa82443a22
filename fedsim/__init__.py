"""fedsim: a federated-learning attack laboratory.

    seen = fedsim.observe(model, images, labels)
    guess = fedsim.attack("span_matching", seconds=60)(model, seen, input_shape=(1, 28, 28))
    print(fedsim.score(guess, images, labels))

Names are imported when they are first used: `import fedsim` alone imports neither torch nor Flower.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedsim.core import environment as environment  # first of all: Flower and Ray read it when imported
from fedsim.core.errors import FedsimError
from fedsim.core.version import __version__

if TYPE_CHECKING:
    from fedsim.api.canaries import canaries
    from fedsim.api.choose import attack, dataset, defense, metric, model
    from fedsim.api.comparisons import compare
    from fedsim.api.observe import observation, observe
    from fedsim.api.pictures import Picture, show
    from fedsim.api.runs import Run, Runs, load, load_all, run
    from fedsim.api.scores import Scores, score
    from fedsim.core.interfaces import Attack, Audit, Behaviour, Defense, Forgery, Metric
    from fedsim.core.types import Observation, Reconstruction, Score, Task, Truth, Weights
    from fedsim.data.images import Dataset
    from fedsim.flower.wiretap import Wiretap, keep_truth
    from fedsim.integrity.prove_loop import prove
    from fedsim.integrity.recorder import Recorder

__all__ = [
    "Attack",
    "Audit",
    "Behaviour",
    "Dataset",
    "Defense",
    "FedsimError",
    "Forgery",
    "Metric",
    "Observation",
    "Picture",
    "Reconstruction",
    "Recorder",
    "Run",
    "Runs",
    "Score",
    "Scores",
    "Task",
    "Truth",
    "Weights",
    "Wiretap",
    "__version__",
    "attack",
    "canaries",
    "compare",
    "dataset",
    "defense",
    "keep_truth",
    "load",
    "load_all",
    "metric",
    "model",
    "observation",
    "observe",
    "prove",
    "run",
    "score",
    "show",
]

_HOMES = {  # as above, for whoever runs and does not check types; a test holds them together
    "fedsim.api.canaries": ("canaries",),
    "fedsim.api.choose": ("attack", "dataset", "defense", "metric", "model"),
    "fedsim.api.comparisons": ("compare",),
    "fedsim.api.observe": ("observation", "observe"),
    "fedsim.api.pictures": ("Picture", "show"),
    "fedsim.api.runs": ("Run", "Runs", "load", "load_all", "run"),
    "fedsim.api.scores": ("Scores", "score"),
    "fedsim.core.interfaces": ("Attack", "Audit", "Behaviour", "Defense", "Forgery", "Metric"),
    "fedsim.core.types": ("Observation", "Reconstruction", "Score", "Task", "Truth", "Weights"),
    "fedsim.data.images": ("Dataset",),
    "fedsim.flower.wiretap": ("Wiretap", "keep_truth"),
    "fedsim.integrity.prove_loop": ("prove",),
    "fedsim.integrity.recorder": ("Recorder",),
}


if not TYPE_CHECKING:  # or a type checker would let every name pass

    def __getattr__(name: str) -> Any:
        """Import a public name when it is first asked for."""
        for home, names in _HOMES.items():
            if name in names:
                found = globals()[name] = getattr(import_module(home), name)
                return found
        raise AttributeError(f"module 'fedsim' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
