"""The page of a calibration: what its studies measured."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import yaml
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from fedsim.report.answers import Answer
from fedsim.report.answers_integrity import calibration_answer
from fedsim.report.origin import origin_of, setting_of
from fedsim.report.page import write_page
from fedsim.storage.findings import Finding, findings
from fedsim.storage.runfolder import RunFolder
from fedsim.storage.status import Status, standing_of


def answer_of(folder: RunFolder, summary: Mapping[str, Any]) -> Answer:
    """Say which limits the studies lead to."""
    setting = setting_of([yaml.safe_load(folder.config_text()) or {}])
    return calibration_answer(findings(folder.storage), setting, standing_of(summary))


def drawings_of(folder: RunFolder, summary: Mapping[str, Any]) -> dict[str, Figure]:
    """Draw nothing: the page is words and tables."""
    return {}


def write_page_of(folder: RunFolder, summary: Mapping[str, Any]) -> Path:
    """Write report.html into the folder of a calibration."""
    standing, config = standing_of(summary), yaml.safe_load(folder.config_text()) or {}
    return write_page(
        folder.path / "report.html",
        "calibration.html",
        drawings_of(folder, summary),
        title=": ".join(filter(None, ("Calibration of audits", setting_of([config])))),
        answer=answer_of(folder, summary),
        origin=origin_of(folder, summary, config),
        standing="" if standing.status is Status.COMPLETE else str(standing),
        studies={
            study: tables_of(list(found))
            for study, found in groupby(findings(folder.storage), key=lambda finding: finding.study)
        },
    )


def tables_of(found: Sequence[Finding]) -> list[tuple[tuple[str, ...], list[tuple[str, list[float]]]]]:
    """Return a study's figures as tables: a row a case, and one table for cases with the same figures."""
    cases, tables = dict[str, dict[str, float]](), dict[tuple[str, ...], list[tuple[str, list[float]]]]()
    for finding in found:
        cases.setdefault(finding.case, {})[finding.figure] = finding.value
    for case, values in cases.items():
        tables.setdefault(tuple(values), []).append((case, list(values.values())))
    return list(tables.items())


def print_findings(found: Sequence[Finding]) -> None:
    """Print the table that ends a calibration."""
    table = Table("study", "case", "figure", "value")
    for finding in found:
        table.add_row(finding.study, finding.case, finding.figure, f"{finding.value:.3g}")
    Console(width=100).print(table)
