"""Weights of ResNet from any file that holds them: this project's, torchvision's, Horovod's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from hvd_ext.errors import UsageError
from resnet.model import KIND, ResNet
from training.checkpoint import read_file

Weights = dict[str, Tensor]


def read_weights(path: Path) -> tuple[Weights, tuple[str, ...]]:
    """The state_dict in a file, and the names of its classes if it has them.

    Args:
        path: a checkpoint of resnet.train, a bare state_dict (torchvision's), or a dict with one
            (`state_dict` or `model`, as Horovod's and torchvision's examples write it).

    Raises:
        UsageError: the file cannot be read, or holds none.
    """
    found = read_file(path, KIND)
    if found.get("kind", KIND) != KIND:
        raise UsageError(f"{path} is a checkpoint of {found['kind']!r}, not of {KIND!r}")
    inner = next((found[key] for key in ("state_dict", "model") if key in found), found)
    if not isinstance(inner, Mapping) or not any(str(key).endswith("fc.weight") for key in inner):
        raise UsageError(f"{path} holds no weights of a ResNet")
    weights = {str(name).removeprefix("module."): value for name, value in inner.items()}
    return weights, tuple(map(str, found.get("classes", ())))


def load_weights(model: ResNet, weights: Weights, path: Path) -> None:
    """Load a state_dict; `num_batches_tracked` may be missing, as in older files.

    Raises:
        UsageError: any other key is missing, unknown or of another shape.
    """
    counters = {
        key: value
        for key, value in model.state_dict().items()
        if key.endswith("num_batches_tracked")
    }
    try:
        model.load_state_dict(counters | weights)
    except RuntimeError as error:
        classes = model.fc.out_features
        raise UsageError(
            f"the weights in {path} do not fit {model.name} of {classes} classes: name their "
            "--model, or other weights; without the names of classes in them, --val-dir must have "
            "a folder of each class"
        ) from error


def start_from(model: ResNet, path: Path) -> None:
    """Begin with the weights in a file; of other classes, with all but the last layer's.

    Raises:
        UsageError: they are of another network.
    """
    weights, _ = read_weights(path)
    own = model.state_dict()
    if weights["fc.weight"].shape != own["fc.weight"].shape:
        weights |= {name: own[name] for name in ("fc.weight", "fc.bias")}
    load_weights(model, weights, path)
