"""Limits of a detector from honest rounds: how often it may cry wolf decides where they lie.

Paper: none; conformal prediction (Vovk et al., Algorithmic Learning in a Random World, 2005) has the rank.
"""

import math
from collections.abc import Mapping, Sequence

from fedsim.core.errors import FedsimError


def calibrated(rounds: Sequence[Mapping[str, float]], false_alarms: float = 0.01) -> dict[str, float]:
    """Return a limit for each sign, so that at most this share of honest rounds is above any of them.

    rounds: the signs of honest rounds, such as a client's own trainings on its data (weight_signs and
    gradient_signs have them); InspectWeights(**limits) goes by what comes back. It holds for rounds that
    are drawn as these were: each sign gets an equal part of the false alarms.
    """
    if not 0 < false_alarms < 1:
        raise FedsimError(f"false_alarms: expected a share between 0 and 1, got {false_alarms}")
    kinds = sorted({kind for signs in rounds for kind in signs})
    # Of n + 1 rounds that are alike, each is as likely to be the new one: so many of n must lie below.
    rank = math.ceil((len(rounds) + 1) * (1 - false_alarms / max(1, len(kinds))) - 1e-9)
    if not kinds or rank > len(rounds):
        needed = math.ceil(max(1, len(kinds)) / false_alarms) - 1
        raise FedsimError(
            f"expected at least {needed} honest rounds for {len(kinds)} signs and false alarms in "
            f"{100 * false_alarms:g} %, got {len(rounds)}. Remedy: more rounds, or a larger false_alarms."
        )
    return {kind: sorted(signs[kind] for signs in rounds)[rank - 1] for kind in kinds}
