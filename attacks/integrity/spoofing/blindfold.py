"""The few steps that a verifier of the largest updates looks at are honest, the rest are made up.

What it gains: all but Q steps' work.
Paper: Fang et al., Proof-of-Learning is Currently More Broken Than You Think (EuroS&P 2023).
Assumes: the verifier looks at the Q largest updates alone.
Caught by: one step at random.
"""

from fedsim.attacks.integrity.spoofing.fabricate import claimed, shifted
from fedsim.core.interfaces import Behaviour
from fedsim.core.settings import number, whole
from fedsim.core.training import Claim, LocalWork, load_weights, sgd_step, weights_of


class Blindfold(Behaviour):
    """Takes the first steps honestly; the others are random moves of a fraction of their size."""

    def __init__(self, *, honest_steps: int = 1, size: float = 0.3) -> None:
        """Set how many steps are honest, and the size of the others in units of the last honest one."""
        self.honest_steps = whole("client.blindfold.honest_steps", honest_steps)
        self.size = number("client.blindfold.size", size, above=0, below=1)

    def train(self, work: LocalWork) -> Claim:
        """Work while somebody looks."""
        load_weights(work.model, work.sent)
        batches, way = work.own_batches(), [dict(work.sent)]
        for batch in batches[: self.honest_steps]:
            sgd_step(work.model, batch, work.learning_rate)
            way.append(weights_of(work.model))
        update = {name: way[-1][name] - way[-2][name] for name in way[-1]}
        while len(way) <= work.steps:
            move = shifted(work, update, self.size)
            way.append({name: way[-1][name] + move[name] - work.sent[name] for name in move})
        return claimed(work, way, batches)
