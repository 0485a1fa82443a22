"""The error a user meets: what was expected, what came, and the remedy."""


class FedsimError(Exception):
    """A problem with input, config, files or messages that the user can mend."""
