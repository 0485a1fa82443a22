"""The one import of torchvision, working also where its compiled operators do not match torch.

Without the operators `import torchvision` fails on the schema of `nms`. Declaring the two schemas
first lets models, transforms, data sets and lpips load; `ops.nms` and `io.decode_image` stay unusable,
and nothing here calls them.
"""

import functools
import importlib.util
from pathlib import Path
from typing import Any

import torch

from fedsim.core.errors import FedsimError

_declared: list[torch.library.Library] = []  # kept: the schemas go when the library object does


@functools.cache
def load_torchvision() -> Any:
    """Return torchvision; call it before importing anything that imports torchvision itself."""
    if not _compiled_operators_load():
        library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
        for name in ("nms", "qnms"):
            schema = f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            library.define(schema)  # type: ignore[no-untyped-call]
        _declared.append(library)
    import torchvision

    return torchvision


def _compiled_operators_load() -> bool:
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        raise FedsimError("torchvision is not installed. Remedy: pip install 'torchvision>=0.23,<0.29'")
    for library in Path(spec.origin).parent.glob("_C.*"):
        try:
            torch.ops.load_library(library)  # type: ignore[no-untyped-call]
        except OSError:
            return False
        return True
    return False
