"""No audit: every reply counts."""

from fedsim.core.interfaces import Audit


class NoAudit(Audit):
    """Nobody is asked for a proof."""

    wanted = False
