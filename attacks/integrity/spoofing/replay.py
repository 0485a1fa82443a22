"""Somebody's old proof, sent again.

What it gains: a round's work.
Paper: Jia et al., Proof-of-Learning (S&P 2021), section IV (a proof is bound to its prover and its weights).
Assumes: the verifier does not look whose and of which round a proof is.
Caught by: the round and client inside the sealed proof, and the prover's signature around it.
"""

from fedsim.attacks.integrity.spoofing.free_rider import FreeRider
from fedsim.core.interfaces import Behaviour
from fedsim.core.settings import number
from fedsim.core.training import Claim, LocalWork


class Replay(Behaviour):
    """Sends its last proof again; the update, and the proof of its first round, are a free rider's."""

    def __init__(self, *, noise: float = 0.01) -> None:
        """Set the noise of the update."""
        self.rider = FreeRider(noise=number("client.replay.noise", noise, least=0))

    def train(self, work: LocalWork) -> Claim:
        """Do nothing."""
        return self.rider.train(work)

    def send(self, proof: bytes, previous: bytes) -> bytes:
        """Send the old one, if there is one."""
        return previous or proof
