"""Published weights of EDSR: whatever holds them, the same network comes out."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from edsr.model import PRESETS, edsr, write_architecture
from edsr.weights import load_model, read_weights, start_from
from hvd_ext.errors import UsageError
from tests.support.training.edsr_reference import enlarge, random_weights


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("scale", [2, 3, 4])
def test_outputs_are_those_of_the_paper(tmp_path: Path, preset: str, scale: int) -> None:
    blocks, features = (int(PRESETS[preset][name]) for name in ("blocks", "features"))
    weights = random_weights(scale, blocks, features)
    torch.save({"params": weights}, tmp_path / "net.pth")
    model = load_model(tmp_path / "net.pth")
    expected_shape = model.architecture
    assert (expected_shape.scale, expected_shape.blocks) == (scale, blocks)
    image = torch.rand(1, 3, 7, 6) * 255
    expected = enlarge(weights, image, scale, PRESETS[preset]["res_scale"])
    with torch.inference_mode():
        torch.testing.assert_close(model(image), expected, rtol=1e-4, atol=1e-2)


def test_averaged_weights_come_first(tmp_path: Path) -> None:
    learnt, averaged = random_weights(2, 1, 4), random_weights(2, 1, 4)
    averaged["conv_last.bias"] += 1
    torch.save({"params": learnt, "params_ema": averaged}, tmp_path / "net.pth")
    _, found = read_weights(tmp_path / "net.pth")
    assert found["tail.1.bias"].equal(averaged["conv_last.bias"])


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("prefix", ["", "module.", "model."])
def test_a_bare_state_dict_is_read(tmp_path: Path, prefix: str, zipped: bool) -> None:
    model = edsr(3, blocks=2, features=4)
    bare = {prefix + name: value for name, value in model.state_dict().items()}
    path = tmp_path / "edsr.pt"
    torch.save(bare, path, _use_new_zipfile_serialization=zipped)
    found = load_model(path)
    assert found.architecture == model.architecture
    assert all(found.state_dict()[name].equal(w) for name, w in model.state_dict().items())


@pytest.mark.parametrize(
    ("old", "new", "kept"), [(2, 4, "tail.0.0"), (2, 3, ""), (4, 2, "tail.0.0")]
)
def test_another_scale_begins_with_all_that_fits(
    tmp_path: Path, old: int, new: int, kept: str
) -> None:
    before, model = edsr(old, blocks=1, features=4), edsr(new, blocks=1, features=4)
    fresh = {name: value.clone() for name, value in model.state_dict().items()}
    arch = write_architecture(before.architecture)
    torch.save({"kind": "edsr", "arch": arch, "model": before.state_dict()}, tmp_path / "a.pt")
    start_from(model, tmp_path / "a.pt")
    begun, source = model.state_dict(), before.state_dict()
    for name in begun:
        taken = not name.startswith("tail.0") or (kept and name.startswith(kept))
        assert begun[name].equal(source[name] if taken else fresh[name]), name


@pytest.mark.parametrize(
    ("held", "message"),
    [
        ({"fc.weight": torch.zeros(3)}, "holds no weights of an EDSR"),
        ({"kind": "resnet"}, "is a checkpoint of 'resnet', not of 'edsr'"),
        ({"params": {"conv_first.weight": torch.zeros(4, 3, 3, 3)}}, "holds no weights of an EDSR"),
        (
            {"head.0.weight": torch.zeros(4, 1, 3, 3), "tail.0.0.weight": torch.zeros(16, 4, 3, 3)},
            r"is of an EDSR for images \(1, H, W\), not \(3, H, W\): take one for RGB",
        ),
    ],
)
def test_other_weights_are_refused(tmp_path: Path, held: object, message: str) -> None:
    torch.save(held, tmp_path / "other.pt")
    with pytest.raises(UsageError, match=message):
        load_model(tmp_path / "other.pt")
