"""The error a user meets: what was expected, what came, and the remedy."""


class FedsimError(Exception):
    """A problem with input, config, files or messages that the user can mend."""


def in_words(error: BaseException) -> str:
    """Say an error in a line: ours speak for themselves, others are named by their class."""
    return str(error) if isinstance(error, FedsimError) else f"{type(error).__name__}: {error}"


def printable(words: str) -> str:
    """Return somebody else's words without what terminals take for commands, or no text can hold."""
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in words)


def shortened(words: str, longest: int = 500) -> str:
    """Return words that somebody else wrote, at a length that fits a table."""
    return words if len(words) <= longest else words[:longest] + " ..."
