from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from hvd_ext.data import PackedFile
from hvd_ext.data.pack import pack
from hvd_ext.data.sources import ImageFolder
from hvd_ext.errors import UsageError
from resnet.folder import ClassFolder, ClassPack, load_batches, train_sample
from resnet.model import ResNet50, load_weights, resnet50


@pytest.fixture(scope="module")
def model() -> ResNet50:
    torch.manual_seed(0)
    return resnet50()


def test_counts(model: ResNet50) -> None:
    parameters = list(model.parameters())
    assert sum(p.numel() for p in parameters) == 25_557_032
    assert len(parameters) == 161
    assert len(model.state_dict()) == 320


def test_keys_are_torchvisions(model: ResNet50) -> None:
    norm = ["weight", "bias", "running_mean", "running_var", "num_batches_tracked"]
    expected = {"conv1.weight", "fc.weight", "fc.bias", *(f"bn1.{name}" for name in norm)}
    for layer, blocks in enumerate((3, 4, 6, 3), start=1):
        for block in range(blocks):
            prefix = f"layer{layer}.{block}"
            for n in (1, 2, 3):
                expected.add(f"{prefix}.conv{n}.weight")
                expected |= {f"{prefix}.bn{n}.{name}" for name in norm}
        prefix = f"layer{layer}.0.downsample"
        expected |= {f"{prefix}.0.weight", *(f"{prefix}.1.{name}" for name in norm)}
    assert set(model.state_dict()) == expected


def test_the_stride_is_on_the_three_by_three(model: ResNet50) -> None:
    first = model.get_submodule("layer2.0")
    strides = [first.get_submodule(f"conv{n}").stride for n in (1, 2, 3)]
    assert strides == [(1, 1), (2, 2), (1, 1)]


def test_weights_without_batch_counters_load(model: ResNet50) -> None:
    weights = {k: v for k, v in model.state_dict().items() if "num_batches" not in k}
    assert len(weights) == 267
    fresh = resnet50()
    load_weights(fresh, weights)
    assert all(fresh.state_dict()[key].equal(value) for key, value in weights.items())
    with pytest.raises(RuntimeError, match=r"fc\.weight"):
        load_weights(fresh, {k: v for k, v in weights.items() if k != "fc.weight"})


def test_zero_init_makes_each_block_the_identity() -> None:
    block = resnet50(zero_init_residual=True).get_submodule("layer1.1").eval()
    x = torch.rand(1, 256, 8, 8)
    assert block(x).equal(x)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, colour in (("cat", 50), ("dog", 200)):
        (tmp_path / name).mkdir()
        for i in range(3):
            image = Image.new("RGB", (60 + 10 * i, 80), (colour, i, 0))
            image.save(tmp_path / name / f"{i}.png")
    return tmp_path


def test_batches_come_in_order_with_their_labels(folder: Path) -> None:
    images = ClassFolder.read(folder)
    assert images.classes == ("cat", "dog")
    batches = [[5, 0], [1, 4], [2], [3], [0, 1, 2]]
    loaded = list(load_batches(batches, lambda i: images.validation_sample(i, 32), workers=3))
    assert [labels.tolist() for _, labels in loaded] == [[1, 0], [0, 1], [0], [1], [0, 0, 0]]
    assert loaded[4][0].shape == (3, 3, 32, 32)
    red = loaded[0][0][:, 0].mean((1, 2)) * 0.229 + 0.485
    torch.testing.assert_close(red, torch.tensor([200 / 255, 50 / 255]))


@pytest.mark.parametrize("decoded", [False, True])
def test_a_packed_folder_holds_the_same_samples(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, decoded: bool
) -> None:
    path = tmp_path_factory.mktemp("packs") / "a.pack"
    pack(ImageFolder(folder, decoded=decoded), path, lambda completed: None)
    with PackedFile(path) as file:
        images, packed = ClassFolder.read(folder), ClassPack(file)
        assert (packed.classes, len(packed)) == (images.classes, len(images))
        for i in range(len(images)):
            for mine, theirs in zip(packed[i], images[i], strict=True):
                assert np.array_equal(np.asarray(mine), np.asarray(theirs))
        # A class has the number that the training set gives it.
        more = ClassPack(file, ("ant", "cat", "dog"))
        assert [more[i][1] for i in range(6)] == [1, 1, 1, 2, 2, 2]
        with pytest.raises(UsageError, match="'dog', which is not in the training set"):
            ClassPack(file, ("cat",))


def test_a_training_sample_is_a_function_of_image_and_random_numbers(tmp_path: Path) -> None:
    (tmp_path / "only").mkdir()
    noise = np.random.default_rng(0).integers(0, 255, (70, 90, 3)).astype(np.uint8)
    Image.fromarray(noise).save(tmp_path / "only" / "a.png")
    images = ClassFolder.read(tmp_path)
    cuts = [train_sample(images[0], 32, np.random.default_rng(s))[0] for s in range(4)]
    assert len({cut.tobytes() for cut in cuts}) == 4
    assert np.array_equal(cuts[0], train_sample(images[0], 32, np.random.default_rng(0))[0])


def test_bad_folders_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        ClassFolder.read(folder / "missing")
    with pytest.raises(UsageError, match="'dog', which is not in the training set"):
        ClassFolder.read(folder, ("cat",))
    with pytest.raises(UsageError, match="holds no class/image"):
        ClassFolder.read(folder / "cat")
    (folder / "cat" / "0.png").write_text("no image")
    with pytest.raises(UsageError, match="is not a readable image"):
        ClassFolder.read(folder)[0]
