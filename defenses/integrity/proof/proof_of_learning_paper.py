"""The verifier as it was published, with one random step beside the largest: what later attacks break.

Paper: Jia et al., Proof-of-Learning: Definitions and Practice (S&P 2021); section VII-C1 has the random step.
"""

from fedsim.defenses.integrity.proof.proof_of_learning import ProofOfLearning


class ProofOfLearningPaper(ProofOfLearning):
    """The largest updates and few at random, a fixed delta, nothing committed to, nobody excluded."""

    def __init__(
        self,
        *,
        every: int = 1,
        top: int = 1,
        random: int = 1,
        delta: float = 1e-6,
        distance: str = "l2",
        domain: str = "uint8",
        pin_learning_rate: bool = True,
        rejected_weight: float = 0.0,
        keep: bool = True,
    ) -> None:
        """Set the checkpoint interval, how many steps are done again, and how far they may end up.

        All settings are those of ProofOfLearning.
        """
        super().__init__(
            every=every,
            top=top,
            random=random,
            delta=delta,
            widen=0.0,
            distance=distance,
            domain=domain,
            pin_learning_rate=pin_learning_rate,
            strict=False,
            rejected_weight=rejected_weight,
            exclude_after=0,
            keep=keep,
        )
