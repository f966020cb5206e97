"""Weights of EDSR from any file that holds them: this project's, EDSR-PyTorch's, BasicSR's.

Files of other projects name no architecture: it is derived from the shapes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from edsr.model import EDSR, KIND, PRESETS, Architecture, read_architecture
from hvd_ext.errors import UsageError
from training.checkpoint import read_file

Weights = dict[str, Tensor]

# BasicSR's names of the same layers.
_RENAMED = (
    (r"^conv_first\.", "head.0."),
    (r"^body\.(\d+)\.conv1\.", r"body.\1.body.0."),
    (r"^body\.(\d+)\.conv2\.", r"body.\1.body.2."),
    (r"^upsample\.", "tail.0."),
    (r"^conv_last\.", "tail.1."),
)
_CHANNELS = 3
_SCALES = {(4, False): 2, (9, False): 3, (4, True): 4}


def read_weights(path: Path) -> tuple[Architecture, Weights]:
    """The architecture and the state_dict in a file.

    Args:
        path: a checkpoint of edsr.train, a bare state_dict (EDSR-PyTorch), or one of BasicSR;
            averaged weights come before those that were trained.

    Raises:
        UsageError: the file cannot be read, or holds no weights of an EDSR.
    """
    found = read_file(path, KIND)
    if found.get("kind") is not None:
        if found["kind"] != KIND:
            raise UsageError(f"{path} is a checkpoint of {found['kind']!r}, not of {KIND!r}")
        return read_architecture(found, path), dict(found.get("ema", found.get("model", {})))
    weights = {_own_name(name): value for name, value in _state_dict(found).items()}
    architecture = _read_off(weights, path)
    if f"body.{architecture.blocks}.weight" not in weights:
        # BasicSR has no number for it.
        for kind in ("weight", "bias"):
            weights[f"body.{architecture.blocks}.{kind}"] = weights.pop(f"conv_after_body.{kind}")
    if "sub_mean.weight" not in weights:
        own = EDSR(Architecture(2, 1, 1)).state_dict()
        weights |= {name: own[name] for name in own if name.partition(".")[0].endswith("_mean")}
    return architecture, weights


def load_weights(model: EDSR, weights: Mapping[str, Tensor], path: Path) -> None:
    """Load a state_dict.

    Raises:
        UsageError: keys or shapes do not fit.
    """
    try:
        model.load_state_dict(weights)
    except (RuntimeError, TypeError, AttributeError) as error:
        raise UsageError(
            f"the weights in {path} do not fit EDSR {model.architecture}: "
            "pass weights of the same architecture"
        ) from error


def load_model(path: Path) -> EDSR:
    """Return the model of the weights in a file, ready to evaluate.

    Raises:
        UsageError: as `read_weights`.
    """
    architecture, weights = read_weights(path)
    model = EDSR(architecture)
    load_weights(model, weights, path)
    return model.eval()


def start_from(model: EDSR, path: Path) -> None:
    """Begin with the weights in a file; for another scale, with all that fit.

    Raises:
        UsageError: as `read_weights`, or another number of blocks or features.
    """
    found, weights = read_weights(path)
    mine = model.architecture
    if (found.blocks, found.features) != (mine.blocks, mine.features):
        raise UsageError(
            f"{path} is of EDSR {found}; asked for is {mine}: only the scale may differ"
        )
    if found.scale != mine.scale:
        own = model.state_dict()
        fits = {
            name: w for name, w in weights.items() if name in own and w.shape == own[name].shape
        }
        weights = own | fits
    load_weights(model, weights, path)


def _state_dict(found: Mapping[str, object]) -> dict[str, Tensor]:
    for key in ("params_ema", "params", "state_dict", "model"):
        inner = found.get(key)
        if isinstance(inner, Mapping):
            return {str(name): w for name, w in inner.items() if isinstance(w, Tensor)}
    return {str(name): w for name, w in found.items() if isinstance(w, Tensor)}


def _own_name(name: str) -> str:
    name = re.sub(r"^(module\.|model\.)+", "", name)
    for pattern, own in _RENAMED:
        name = re.sub(pattern, own, name)
    return name


def _read_off(weights: Mapping[str, Tensor], path: Path) -> Architecture:
    blocks = sum(re.fullmatch(r"body\.\d+\.body\.0\.weight", name) is not None for name in weights)
    try:
        features, channels = weights["head.0.weight"].shape[:2]
        factor = len(weights["tail.0.0.weight"]) // features
        scale = _SCALES[factor, "tail.0.2.weight" in weights]
    except (KeyError, ValueError) as error:
        raise UsageError(f"{path} holds no weights of an EDSR, x2, x3 or x4") from error
    if channels != _CHANNELS:
        raise UsageError(
            f"{path} is of an EDSR for images ({channels}, H, W), not ({_CHANNELS}, H, W): take "
            "one for RGB"
        )
    # Shapes do not show it, but the published networks of this width have it.
    full = PRESETS["full"]
    res_scale = full["res_scale"] if features >= full["features"] else 1.0
    return Architecture(scale, blocks, features, res_scale)
