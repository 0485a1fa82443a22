"""The report's figures, drawn without a display. Every function returns a matplotlib figure."""

from fedsim.report.figures.comparison import curves_figure, heat_figure, rows_figure, scatter_figure
from fedsim.report.figures.run import (
    COUNTED,
    accuracy_figure,
    confusion_figure,
    count_table,
    label_figure,
    picture_figure,
    scores_figure,
    trace_figure,
)
from fedsim.report.figures.style import INK, literal, wrapped
from fedsim.report.figures.sweep import curve_figure, sweep_figure

__all__ = [
    "COUNTED",
    "INK",
    "accuracy_figure",
    "confusion_figure",
    "count_table",
    "curve_figure",
    "curves_figure",
    "heat_figure",
    "label_figure",
    "literal",
    "picture_figure",
    "rows_figure",
    "scatter_figure",
    "scores_figure",
    "sweep_figure",
    "trace_figure",
    "wrapped",
]
