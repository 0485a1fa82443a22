"""The report's figures, drawn without a display. Every function returns a matplotlib figure."""

from fedsim.report.figures.comparison import curves_figure, heat_figure, rows_figure, scatter_figure
from fedsim.report.figures.run import (
    COUNTED,
    confusion_figure,
    count_table,
    label_figure,
    picture_figure,
    rounds_figure,
    trace_figure,
)
from fedsim.report.figures.sweep import bars_figure, curve_figure

__all__ = [
    "COUNTED",
    "bars_figure",
    "confusion_figure",
    "count_table",
    "curve_figure",
    "curves_figure",
    "heat_figure",
    "label_figure",
    "picture_figure",
    "rounds_figure",
    "rows_figure",
    "scatter_figure",
    "trace_figure",
]
