"""Which fedsim this is, as pyproject.toml says."""

__version__ = "0.1.0"
