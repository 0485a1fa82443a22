"""Two valid traces glued together: one begins where it should, the other ends where the client wants.

What it gains: a proof for weights of its choice, at the price of a few steps; only one step of it is false.
Paper: Jia et al., Proof-of-Learning (S&P 2021), section VII-C1.
Assumes: the verifier looks at few steps, chosen at random.
Caught by: looking at the largest update: the jump is many times any honest one.
"""

from fedsim.attacks.integrity.spoofing.fabricate import claimed, shifted
from fedsim.core.interfaces import Behaviour
from fedsim.core.settings import number
from fedsim.core.training import Claim, LocalWork, load_weights, sgd_step, weights_of


class Concatenation(Behaviour):
    """Trains half the steps, jumps to weights of its own, and trains the other half from there."""

    def __init__(self, *, jump: float = 3.0) -> None:
        """Set the length of the jump, in units of each tensor of the first half's update."""
        self.jump = number("client.concatenation.jump", jump, above=0)

    def train(self, work: LocalWork) -> Claim:
        """Take honest steps but for one."""
        load_weights(work.model, work.sent)
        batches, way = work.own_batches(), [dict(work.sent)]
        for step, batch in enumerate(batches):
            if step == work.steps // 2:  # in place of this step
                update = {name: way[-1][name] - way[0][name] for name in way[0]}
                if not any(bool(tensor.any()) for tensor in update.values()):
                    update = dict(work.sent)
                load_weights(work.model, shifted(work, update, self.jump))
            else:
                sgd_step(work.model, batch, work.learning_rate)
            way.append(weights_of(work.model))
        return claimed(work, way, batches)
