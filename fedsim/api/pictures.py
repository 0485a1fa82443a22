"""A figure that a notebook shows by itself."""

import base64
import html
import io
from dataclasses import dataclass, field
from pathlib import Path

from matplotlib.figure import Figure
from torch import Tensor

from fedsim.metrics.image_matching import match_to_truth, peak_signal_to_noise
from fedsim.report.figures import picture_figure


@dataclass(frozen=True, eq=False)
class Picture:
    """A figure with a title."""

    figure: Figure = field(repr=False)
    title: str = ""

    def save(self, path: str | Path) -> None:
        """Write it as an image; the path's end says which kind."""
        self.figure.savefig(path)

    def _repr_png_(self) -> bytes:
        written = io.BytesIO()
        self.figure.savefig(written, format="png", dpi=60)
        return written.getvalue()

    def _repr_html_(self) -> str:
        shown = base64.b64encode(self._repr_png_()).decode()
        return f'<p>{html.escape(self.title)}</p><img src="data:image/png;base64,{shown}">'


def show(guessed: Tensor, images: Tensor | None = None, *, most: int = 8) -> Picture:
    """Draw guessed images, beside the true ones if they are given: each under the one it is nearest to."""
    if images is None:
        return Picture(picture_figure(None, guessed[:most].detach().cpu(), [""] * len(guessed[:most])))
    true = images.detach().cpu()
    matched, true = match_to_truth(guessed, true)[:most], true[:most]
    captions = [f"{psnr:.1f} dB" for psnr in peak_signal_to_noise(matched, true).tolist()]
    return Picture(picture_figure(true, matched, captions))
