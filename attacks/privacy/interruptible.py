"""A search that a user may interrupt: what it has found by then is shown."""

import dataclasses
import time
from collections.abc import Callable, Sized

from fedsim.core.errors import FedsimError
from fedsim.core.types import Interrupted, Reconstruction


def shown_after(
    search: Callable[[], None], found: Sized, shown: Callable[[], Reconstruction], *, nothing: str | None
) -> Reconstruction:
    """Search, then show what is in `found`, with the seconds that both took.

    nothing: the error where nothing was found; None: that is shown as well.
    """
    started, interrupted = time.perf_counter(), False
    try:
        search()
    except KeyboardInterrupt:
        interrupted = True
    if not len(found) and nothing is not None:
        if interrupted:
            raise KeyboardInterrupt
        raise FedsimError(nothing)
    guess = dataclasses.replace(shown(), seconds=time.perf_counter() - started)
    if interrupted:
        raise Interrupted(guess)
    return guess
