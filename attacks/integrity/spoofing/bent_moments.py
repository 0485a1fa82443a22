"""Weights moved through an optimizer's memory: a bend below delta that the next steps make far longer.

What it gains: weights of its choice where gradients vanish, such as those of pixels that are always dark: a
    backdoor that no example shows. Adam divides the first moment by the root of the second plus 1e-8, so what
    is added to a first moment where the second is zero moves the weight by up to learning rate / 1e-8 times
    as much; 1e-7 becomes a tenth.
Paper: none; Kingma and Ba, Adam (ICLR 2015) has the division.
Assumes: a proof of a loop of the prover's own with such an optimizer; the verifier grants delta to what was
    computed on another machine, and measures the state alone.
Caught by: the next step, taken from the state claimed and from the one found: they must not part.
"""

from fedsim.core.types import Weights

FIRST, SECOND = ".exp_avg", ".exp_avg_sq"  # as torch names the moments of Adam and its kin


def bent_moments(state: Weights, delta: float, share_used: float = 0.9) -> Weights:
    """Return a loop's state with first moments raised, by less than delta (l2), where the second are zero."""
    bent = dict(state)
    still = {name: state[name.removesuffix(FIRST) + SECOND] == 0 for name in state if name.endswith(FIRST)}
    number = sum(int(where.sum()) for where in still.values())
    for name, where in still.items():
        bent[name] = state[name] + where * (share_used * delta / max(1, number) ** 0.5)
    return bent
