"""fedsim: a federated-learning attack laboratory."""

from fedsim.core import environment as environment  # first of all: Flower and Ray read it when imported

__version__ = "0.1.0"
