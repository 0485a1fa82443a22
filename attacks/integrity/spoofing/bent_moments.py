"""Weights moved through an optimizer's memory: a bend below delta that the next steps make far longer.

What it gains: weights of its choice where gradients vanish, such as those of pixels that are always dark: a
    backdoor that no example shows. Adam divides the first moment by the root of the second plus 1e-8, so what
    is added to a first moment where the second is zero moves the weight by up to learning rate / 1e-8 times
    as much; 1e-7 becomes a tenth.
Paper: none; Kingma and Ba, Adam (ICLR 2015) has the division.
Assumes: a proof of a loop of the prover's own with such an optimizer (`fedsim.integrity.spoof.spoofed_loop`
    with `bend`); the verifier grants delta to what was computed on another machine, and measures the state
    alone. Plain SGD, as clients do it, has no memory: there the bend stays as short as it is.
Caught by: the next step, taken from the state claimed and from the one found: they must not part. Where the
    rate of that step is zero, as at the end of a cosine, steps until the model moves.
"""

from dataclasses import replace

from fedsim.attacks.integrity.spoofing.creep import Creep
from fedsim.core.interfaces import Behaviour
from fedsim.core.settings import number, whole
from fedsim.core.training import Claim, LocalWork, load_weights, step_gradient
from fedsim.core.types import Weights

FIRST, SECOND = ".exp_avg", ".exp_avg_sq"  # as torch names the moments of Adam and its kin


class BentMoments(Behaviour):
    """Bends what nothing corrects, by less than delta: moments of a loop, or weights without a gradient."""

    def __init__(self, *, delta: float = 1e-6, share_used: float = 0.9, bent: int = 1) -> None:
        """Set the verifier's delta (l2), how much of it is used, and at which checkpoint of a loop."""
        self.delta = number("client.bent_moments.delta", delta, least=0)
        self.share_used = number("client.bent_moments.share_used", share_used, above=0, most=1)
        self.bent = whole("client.bent_moments.bent", bent)

    def bend(self, place: int, state: Weights) -> Weights:
        """Return a loop's state with first moments raised where the second are zero, at one checkpoint."""
        bent = dict(state)
        if place != self.bent:
            return bent
        still = {
            name: state[name.removesuffix(FIRST) + SECOND] == 0 for name in state if name.endswith(FIRST)
        }
        total = sum(int(where.sum()) for where in still.values())
        for name, where in still.items():
            bent[name] = state[name] + where * (self.share_used * self.delta / max(1, total) ** 0.5)
        return bent

    def train(self, work: LocalWork) -> Claim:
        """Train, and lean towards larger weights where the first batch has the smallest gradients."""
        load_weights(work.model, work.sent)
        gradient, _ = step_gradient(work.model, work.batch(work.indices(0)))
        least = {name: tensor.abs() <= tensor.abs().min() for name, tensor in gradient.items()}
        far = {name: sent + 1e3 * least[name].cpu() for name, sent in work.sent.items()}
        lean = Creep(delta=self.delta, share_used=self.share_used, hides_machine=True)
        return lean.train(replace(work, target=far))
