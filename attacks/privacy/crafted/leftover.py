"""Images that no row shows alone, by the spaces of what is left: rows span inputs, columns span errors.

An image is a point of the row space whose error is a point of the column space. Between two thresholds of
one direction all images have the error of their label alone, so every such cell and label is tried;
several images of one bin are solved as long as their labels differ. Units of different directions go to
the exact family's search, on what peeling left.
"""

import torch
from torch import Tensor

from fedsim.attacks.privacy.crafted.decode import Peel
from fedsim.attacks.privacy.exact.certificates import judge
from fedsim.attacks.privacy.exact.error_peel import ErrorPeel
from fedsim.attacks.privacy.least_squares import fit
from fedsim.attacks.privacy.matching.linear_layers import LinearLayer, clear_rank

INSIDE = 0.05  # share of an error beside the column space that is worth a closer look
ZOOMS, POINTS = 4, 9  # closer and closer looks at where in its cell an image lies
MOST_SEARCHED = 24  # images left that a search of directions is tried on
STARTS, STEPS, IDLE = 128, 60, 3  # of that search


def one_direction(peel: Peel) -> bool:
    """Say whether all units have the same row, and thresholds in order."""
    weight, bias = peel.readout.weight, peel.readout.bias
    return bool((weight == weight[0]).all()) and bool((bias[1:] <= bias[:-1]).all())


def solve_bins(peel: Peel) -> int:
    """Solve bins of several images of one direction; return how many images were found."""
    live = peel.rows.norm(dim=1) > 300 * peel.noise * peel.rows.shape[1] ** 0.5
    left = peel.rows[live]
    if not len(left) or len(peel) >= peel.most:
        return 0
    rank = clear_rank(left) if min(left.shape) > 1 else 1
    rank = min(rank or len(left), peel.most - len(peel), len(left))
    columns = torch.linalg.svd(left, full_matrices=False)[0][:, :rank]
    cells = _cells(peel, live)
    if not len(cells):
        return 0
    errors, labels = _errors_in(peel, columns, live, cells)
    chosen = _independent(errors, rank)
    if not chosen:
        return 0
    inputs = fit(errors[chosen].T, left)
    before = len(peel)
    for image, label in zip(inputs, labels[chosen].tolist(), strict=True):
        low, high = peel.readout.low, peel.readout.high
        slack = 20 * peel.tolerance * float((high - low).max())
        pixels = image[:-1] / image[-1]
        if bool(((pixels >= low - slack) & (pixels <= high + slack)).all()):
            peel.take(image / image[-1], label)
    return len(peel) - before


def _cells(peel: Peel, live: Tensor) -> Tensor:
    """Return units t such that an image between thresholds t and t + 1 would be in live rows alone."""
    units = torch.arange(len(live))
    levels = int((peel.above < 0).sum())  # interleaved ones: each has one unit without a next
    rows = units[:, None] - torch.arange(levels)
    return units[(live[rows.clamp(min=0)] | (rows < 0)).all(dim=1)]


def _errors_in(peel: Peel, columns: Tensor, live: Tensor, cells: Tensor) -> tuple[Tensor, Tensor]:
    """Return the errors (n, live rows) of cells and labels that lie in the column space, best first."""
    readout = peel.readout
    size = readout.weight.norm(dim=1)
    edges = -readout.bias / size  # thresholds, in lengths along the direction
    above = torch.cat([edges[1:], edges[-1:] + (edges[-1] - edges[0]) / len(edges)])
    low, high = edges[cells], above[cells]
    classes = readout.classes
    best = torch.full((len(cells), classes), torch.inf, dtype=columns.dtype)
    middle = ((low + high) / 2)[:, None].expand(-1, classes).clone()
    width = ((high - low) / 2)[:, None].expand(-1, classes)
    shown = columns.new_zeros(len(cells), classes, len(columns))
    for zoom in range(ZOOMS):
        around = middle.clone()
        for shift in torch.linspace(-1, 1, POINTS, dtype=columns.dtype) * (POINTS / 2 - 1) ** -zoom:
            at = (around + shift * width * (1 - 1e-9)).clamp(low[:, None], high[:, None])
            for label in range(classes):
                outputs = (at[:, label, None] - edges) * size
                errors = _label_errors(peel, outputs, label)[:, live]
                outside = (errors - (errors @ columns) @ columns.T).norm(dim=1)
                outside = outside / errors.norm(dim=1).clamp(min=1e-300)
                better = outside < best[:, label]
                best[better, label], middle[better, label] = outside[better], at[better, label]
                shown[better, label] = errors[better]
        if zoom == 0 and not bool((best < INSIDE).any()):
            break
    good = (best < peel.tolerance).nonzero()
    good = good[best[good[:, 0], good[:, 1]].argsort()]
    return shown[good[:, 0], good[:, 1]], good[:, 1]


def _label_errors(peel: Peel, outputs: Tensor, label: int) -> Tensor:
    """Return binned errors (n, rows) of outputs with one label."""
    behind = peel.readout.behind
    labels = torch.full((len(outputs),), label)
    errors = behind.errors(outputs, labels).detach() / peel.size
    return peel.binned(errors.T).T


def _independent(errors: Tensor, most: int) -> list[int]:
    """Return the first errors that are none of each other's combinations."""
    kept, basis = list[int](), errors.new_empty(0, errors.shape[1])
    for place, error in enumerate(errors / errors.norm(dim=1, keepdim=True)):
        rest = error - (basis @ error) @ basis
        if float(rest.norm()) > 0.05 and len(kept) < most:
            kept.append(place)
            basis = torch.cat([basis, rest[None] / rest.norm()])
    return kept


def search_directions(peel: Peel, random: torch.Generator) -> int:
    """Search for what peeling left, by the exact family; return how many images were found."""
    left = peel.most - len(peel)
    if not 0 < left <= MOST_SEARCHED or 3 * left > min(peel.rows.shape) or not bool(peel.rows.any()):
        return 0
    rows = peel.sums()
    layer = LinearLayer(
        name="what is left",
        weight=peel.readout.weight,
        bias=peel.readout.bias,
        weight_gradient=rows[:, :-1],
        bias_gradient=rows[:, -1],
        task_shape=None,
    )
    left = layer.different(left)
    search = ErrorPeel.of(layer, peel.readout.behind, left, peel.readout.classes)
    idle = 0
    while len(search) < left and idle < IDLE:
        idle = 0 if search.search(STARTS, STEPS, random) else idle + 1
    if not len(search):
        return 0
    inputs, _ = search.inputs()
    errors = search.behind.errors(inputs @ search.weight.T, search.labels).detach()
    outside = errors - (errors @ search.columns.basis) @ search.columns.basis.T
    residuals = outside.norm(dim=1) / errors.norm(dim=1).clamp(min=1e-300)
    expected = search.columns.expected_residuals(errors)
    passing = judge(residuals, expected, errors.shape[1], 2 * search.size - 1, search.tries).passing
    for image, label in zip((inputs @ search.basis)[passing], search.labels[passing].tolist(), strict=True):
        peel.take(image, label)
    return int(passing.sum())
