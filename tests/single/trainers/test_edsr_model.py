from __future__ import annotations

from pathlib import Path

import pytest
import torch

from edsr.model import PRESETS, edsr, write_architecture
from edsr.tiles import upscale_tiles
from edsr.weights import load_model
from hvd_ext.errors import UsageError
from training.checkpoint import save_checkpoint

PARAMETERS = {
    ("baseline", 2): 1_369_859,
    ("baseline", 3): 1_554_499,
    ("baseline", 4): 1_517_571,
    ("full", 2): 40_729_603,
    ("full", 3): 43_680_003,
    ("full", 4): 43_089_923,
}


@pytest.mark.parametrize(("preset", "scale"), PARAMETERS)
def test_parameter_count(preset: str, scale: int) -> None:
    with torch.device("meta"):
        model = edsr(scale, PRESETS[preset]["blocks"], PRESETS[preset]["features"])
    counts = {True: 0, False: 0}
    for parameter in model.parameters():
        counts[parameter.requires_grad] += parameter.numel()
    assert counts == {True: PARAMETERS[preset, scale], False: 24}


@pytest.mark.parametrize("scale", [2, 3, 4])
def test_keys_are_those_of_the_published_weights(scale: int) -> None:
    layers = ["sub_mean", "add_mean", "head.0", "body.3", "tail.0.0", "tail.1"]
    layers += [f"body.{block}.body.{conv}" for block in range(3) for conv in (0, 2)]
    layers += ["tail.0.2"] if scale == 4 else []
    expected = {f"{layer}.{kind}" for layer in layers for kind in ("weight", "bias")}
    assert set(edsr(scale, blocks=3, features=4).state_dict()) == expected


def test_mean_colour_is_taken_off_and_put_back() -> None:
    model = edsr(2, blocks=1, features=4)
    mean = 255 * torch.tensor([0.4488, 0.4371, 0.4040]).view(1, 3, 1, 1)
    torch.testing.assert_close(model.sub_mean(mean), torch.zeros_like(mean), atol=1e-4, rtol=0)
    torch.testing.assert_close(model.add_mean(torch.zeros_like(mean)), mean)


@pytest.mark.parametrize("scale", [2, 3, 4])
@pytest.mark.parametrize("tile", [7, 16])
def test_tiles_equal_the_whole_image(scale: int, tile: int) -> None:
    torch.manual_seed(0)
    model = edsr(scale, blocks=2, features=8).eval()
    image = torch.randint(0, 256, (41, 29, 3)).byte()
    with torch.inference_mode():
        whole = model(image.permute(2, 0, 1).unsqueeze(0).float())[0]
    high = torch.full_like(whole, torch.nan)
    for place, pixels in upscale_tiles(model, image.numpy(), tile):
        high[(slice(None), *place)] = pixels
    torch.testing.assert_close(high, whole, atol=1e-3, rtol=0)


@pytest.mark.parametrize("scale", [2, 3, 4])
def test_reach_is_as_far_as_a_pixel_looks_and_no_farther(scale: int) -> None:
    torch.manual_seed(0)
    model = edsr(scale, blocks=1, features=4)
    side = 2 * model.reach + 5
    image = torch.rand(1, 3, side, side, requires_grad=True)
    middle = side // 2
    block = slice(middle * scale, (middle + 1) * scale)
    model(image)[..., block, block].sum().backward()
    assert image.grad is not None
    rows = image.grad.abs().sum((0, 1, 3)).nonzero().flatten()
    assert model.reach - 1 <= middle - int(rows.min()) <= model.reach
    assert model.reach - 1 <= int(rows.max()) - middle <= model.reach


def test_colours_are_exact_under_autocast() -> None:
    """In bfloat16 they would be steps of 1, and the mean colour off by a tenth of one."""
    torch.manual_seed(0)
    model = edsr(2, blocks=1, features=4)
    for parameter in model.tail[1].parameters():
        torch.nn.init.zeros_(parameter)
    with torch.autocast("cpu", torch.bfloat16):
        shifted, made = (
            model.sub_mean(torch.full((1, 3, 8, 8), 200.3)),
            model(torch.zeros(1, 3, 8, 8)),
        )
    mean = 255 * torch.tensor([0.4488, 0.4371, 0.4040])
    torch.testing.assert_close(shifted[0, :, 0, 0], 200.3 - mean, atol=1e-4, rtol=0)
    torch.testing.assert_close(made[0, :, 0, 0], mean, atol=1e-4, rtol=0)


def test_scale_five_is_refused() -> None:
    with pytest.raises(UsageError, match=r"scale 5 is not 2, 3 or 4"):
        edsr(5)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    model = edsr(2, blocks=1, features=4)
    state = {
        "kind": "edsr",
        "arch": write_architecture(model.architecture),
        "model": model.state_dict(),
    }
    path = tmp_path / "checkpoint.pt"
    save_checkpoint(path, state)
    return path


def test_a_checkpoint_gives_its_model_back(checkpoint: Path) -> None:
    model = load_model(checkpoint)
    assert model.architecture == edsr(2, blocks=1, features=4).architecture
    assert not model.training


@pytest.mark.parametrize("keep", [0, 100, 0.5, 0.98])
def test_a_checkpoint_that_is_cut_off_is_refused(checkpoint: Path, keep: float) -> None:
    content = checkpoint.read_bytes()
    checkpoint.write_bytes(content[: int(keep * len(content)) if keep < 1 else int(keep)])
    with pytest.raises(UsageError, match="is not a checkpoint, or is damaged or cut off"):
        load_model(checkpoint)


@pytest.mark.parametrize("content", [b"garbage", b"PK\x03\x04 not a zip", b"step,loss\n1,2\n"])
def test_a_file_that_is_no_checkpoint_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "checkpoint.pt"
    path.write_bytes(content)
    with pytest.raises(UsageError, match="is not a checkpoint"):
        load_model(path)


def test_a_checkpoint_cannot_run_code(tmp_path: Path) -> None:
    class Payload:
        def __reduce__(self) -> tuple[object, ...]:
            return Path.touch, (tmp_path / "owned",)

    torch.save({"kind": "edsr", "model": Payload()}, tmp_path / "checkpoint.pt")
    with pytest.raises(UsageError, match="is not a checkpoint"):
        load_model(tmp_path / "checkpoint.pt")
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"kind": "resnet", "model": {}}, "a checkpoint of 'resnet', not of 'edsr'"),
        ({"conv1.weight": torch.zeros(1)}, "holds no weights of an EDSR"),
        (torch.zeros(3), "not of edsr.train"),
        ({"kind": "edsr"}, "holds no architecture"),
        ({"kind": "edsr", "arch": {"scale": 9}}, "scale 9 is not 2, 3 or 4"),
        ({"kind": "edsr", "arch": {"scale": 2}, "model": {}}, "do not fit EDSR x2"),
    ],
)
def test_a_checkpoint_of_another_model_is_refused(
    tmp_path: Path, state: object, message: str
) -> None:
    torch.save(state, tmp_path / "checkpoint.pt")
    with pytest.raises(UsageError, match=message) as caught:
        load_model(tmp_path / "checkpoint.pt")
    assert "\n" not in str(caught.value)


def test_a_failed_save_keeps_the_old_checkpoint(checkpoint: Path) -> None:
    old = checkpoint.read_bytes()
    with pytest.raises(Exception, match="pickle"):
        save_checkpoint(checkpoint, {"model": torch.zeros(9), "bad": lambda: None})
    assert checkpoint.read_bytes() == old
    assert list(checkpoint.parent.iterdir()) == [checkpoint]
