"""Training that is drawn towards weights which are already there.

What it gains: a trace that ends near stolen or chosen weights.
Paper: Jia et al., Proof-of-Learning (S&P 2021), section VII-C2 and appendix B.
Assumes: a pull too small to be noticed still arrives.
Caught by: any recomputed step, unless the pull is below delta, and then it arrives nowhere.
"""

from fedsim.attacks.integrity.spoofing.fabricate import claimed, moved, shifted
from fedsim.core.interfaces import Behaviour
from fedsim.core.settings import number
from fedsim.core.training import Claim, LocalWork, load_weights, sgd_step, weights_of


class DirectedRetraining(Behaviour):
    """Takes honest steps, and after each goes a share of the way to weights of its choice."""

    def __init__(self, *, pull: float = 0.2, away: float = 0.3) -> None:
        """Set the share of the way, and how far those weights are, in units of each tensor sent."""
        self.pull = number("client.directed_retraining.pull", pull, least=0, most=1)
        self.away = number("client.directed_retraining.away", away, above=0)

    def train(self, work: LocalWork) -> Claim:
        """Train towards the target."""
        target = shifted(work, work.sent, self.away)
        load_weights(work.model, work.sent)
        batches, way = work.own_batches(), [dict(work.sent)]
        for batch in batches:
            sgd_step(work.model, batch, work.learning_rate)
            way.append(dict(moved(weights_of(work.model), target, self.pull)))
            load_weights(work.model, way[-1])
        return claimed(work, way, batches)
