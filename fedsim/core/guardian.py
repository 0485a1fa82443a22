"""A small process that tidies up behind another one, even after kill -9. Needs nothing but Python itself.

    python guardian.py PID FOLDER

When the process PID is gone, everything that has FOLDER among its arguments or a file of it open is ended,
and FOLDER is removed.
"""

import contextlib
import os
import shutil
import signal
import sys
import time

GLANCE = 0.2  # seconds between looks
LAST = 5.0  # seconds for the last ones to be gone


def processes_about(folder: str) -> list[int]:
    """Return the other processes that have a folder in their arguments, or a file of it open."""
    numbers = [entry for entry in os.listdir("/proc") if entry.isdigit()] if os.path.isdir("/proc") else []
    return [int(entry) for entry in numbers if int(entry) != os.getpid() and _is_about(entry, folder)]


def _is_about(process: str, folder: str) -> bool:
    with contextlib.suppress(OSError), open(f"/proc/{process}/cmdline", "rb") as file:
        if os.fsencode(folder) in file.read():
            return True
    with contextlib.suppress(OSError):  # Ray's agents change their names, and keep logs open
        for number in os.listdir(f"/proc/{process}/fd"):
            if os.readlink(f"/proc/{process}/fd/{number}").startswith(folder):
                return True
    return False


def main() -> None:
    """Wait for the process to be gone, then tidy up."""
    process, folder = int(sys.argv[1]), sys.argv[2]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # they are for the process that is watched
    while os.getppid() == process:
        time.sleep(GLANCE)
    deadline = time.monotonic() + LAST
    while (left := processes_about(folder)) and time.monotonic() < deadline:
        for other in left:
            with contextlib.suppress(OSError):
                os.kill(other, signal.SIGKILL)
        time.sleep(GLANCE)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
