"""Nobody else is told of a run: its folder and its report have it all."""

from fedsim.core.interfaces import Tracker


class NoTracker(Tracker):
    """Tells nobody: what there is to know of a run is in its folder."""
