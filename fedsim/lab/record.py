"""What every command leaves in its run folder, however it ends: log, status, summary, report."""

import logging
import os
import platform
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import torch

from fedsim.core.errors import FedsimError, in_words
from fedsim.core.version import __version__
from fedsim.report.write import answer_of, write_report
from fedsim.storage.logs import logged
from fedsim.storage.runfolder import RunFolder
from fedsim.storage.status import Standing, Status

log = logging.getLogger(__name__)
SCORED = "scored"  # in a summary: all that is left to do is to remove what is not to be kept
LIBRARIES = ("torch", "torchvision", "flwr", "numpy", "hydra-core")


class GaveUp(FedsimError):
    """The attack says of every observation why it cannot work on it: a defense may be meant to do that."""


@contextmanager
def recorded(
    folder: RunFolder, name: str, summarise: Callable[[], Mapping[str, Any]], *, keep: str = "all"
) -> Iterator[None]:
    """Log to the run folder, and write report and summary however the block ends.

    summarise: what the summary says beside name, status, seconds and circumstances. The run is "running" from
    the first write on and "complete" by the last: whoever dies leaves the truth.
    """
    with folder.claimed(), logged(folder.path):
        started, standing = time.perf_counter(), Standing(Status.RUNNING)
        date = {"date": datetime.now(UTC).isoformat(timespec="seconds")}
        folder.write_summary({"name": name, **standing.fields, "metrics": {}})
        try:
            yield
            folder.seal_tables()
            standing = Standing(Status.COMPLETE)
        except GaveUp as error:
            standing = Standing(Status.GAVE_UP, str(error))
            log.error("%s", error)
            raise
        except Exception as error:
            standing = Standing(Status.FAILED, in_words(error))
            log.error("%s", error)
            log.debug("%s", traceback.format_exc())
            raise
        except BaseException:  # Ctrl-C, or a signal that somebody made a SystemExit
            standing = Standing(Status.INTERRUPTED)
            raise
        finally:
            seconds = round(time.perf_counter() - started, 3)
            told = {**summarise(), "seconds": seconds, **date, **_circumstances()}
            summary = {"name": name, **standing.fields, **told}
            try:
                finish(folder, summary, keep)
            except Exception as error:  # must not hide what ended the run
                log.exception("the end could not be written")
                if standing.status is Status.COMPLETE:
                    failed = Standing(Status.FAILED, f"the report: {in_words(error)}")
                    folder.write_summary(summary | failed.fields)
                    raise
                folder.write_summary(summary)


def finish(folder: RunFolder, summary: Mapping[str, Any], keep: str = "all") -> None:
    """Remove what is not to be kept, write the report, and at last the summary."""
    if keep == "scores" and summary["status"] == Status.COMPLETE:
        scored = Standing(Status.RUNNING).fields | {SCORED: True}
        folder.write_summary({**summary, **scored})  # what is scored may go
        folder.forget_private()
    write_report(folder, summary)
    folder.write_summary({**summary, **answer_of(folder, summary)})


def record_failure(folder: RunFolder, kind: str, config_text: str, error: Exception) -> None:
    """Leave a trace of a run that could not even be built, where none was written yet."""
    if not folder.storage.has("config.yaml"):
        folder.begin(kind, config_text)
        failed = Standing(Status.FAILED, in_words(error))
        folder.write_summary({"name": folder.path.name, **failed.fields, "metrics": {}})


def _circumstances() -> dict[str, Any]:
    """Return what the last digits of a figure depend on beside the config: versions, kernels, threads."""
    own = {"fedsim": __version__, "python": platform.python_version()}
    kernels = torch.backends.cpu.get_cpu_capability()  # that torch chose, or ATEN_CPU_CAPABILITY
    return {
        "versions": own | {name: version(name) for name in LIBRARIES},
        "machine": {
            "processor": platform.machine(),
            "instructions": kernels,
            "convolutions": os.environ.get("ONEDNN_MAX_CPU_ISA", "all"),
            "threads": torch.get_num_threads(),
        },
    }
