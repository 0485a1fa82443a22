"""The error a user meets: what was expected, what came, and the remedy. Words of others, to be shown."""

from collections.abc import Iterable
from difflib import get_close_matches


class FedsimError(Exception):
    """A problem with input, config, files or messages that the user can mend."""


REFUSED = "the client refused: "  # how the reason begins of a client that did not like what it was sent


class Refused(FedsimError):
    """A client that saw what it was sent, and does not answer: its own reason, told to the server."""


def in_words(error: BaseException) -> str:
    """Say an error in a line: ours speak for themselves, others are named by their class."""
    return printable(str(error) if isinstance(error, FedsimError) else f"{type(error).__name__}: {error}")


def printable(text: str, keep: str = "\n\t") -> str:
    """Return words of others for a terminal, a log or a page: what cannot be seen becomes a backslash escape.

    So do control characters, which a terminal obeys, marks that turn the reading order around, and lone
    surrogates, which no file takes. keep: of those, the ones that stay; "" for a name in a line.
    """
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() or letter in keep else letter.encode("unicode_escape").decode()
        for letter in text
    )


def shortened(words: str, longest: int = 500) -> str:
    """Return words that somebody else wrote, at a length that fits a table."""
    return words if len(words) <= longest else words[:longest] + " ..."


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return what was perhaps meant, as the end of an error."""
    near = get_close_matches(name, list(known), n=3, cutoff=0.6)
    return f" Did you mean {' or '.join(near)}?" if near else ""
