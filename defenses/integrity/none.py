"""No audit: every reply counts, and nobody is asked for a proof."""


def no_audit() -> None:
    """Nobody is asked for a proof: every reply counts."""
