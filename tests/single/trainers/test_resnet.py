from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from hvd_ext.data import PackedFile
from hvd_ext.data.packed.pack import pack
from hvd_ext.data.packed.sources import ImageFolder
from hvd_ext.errors import UsageError
from resnet.folder import (
    ClassFolder,
    ClassPack,
    centred,
    load_batches,
    normalised,
    train_sample,
)
from resnet.model import MODELS, ResNet, resnet18, resnet50
from resnet.optimizer import sgd
from resnet.schedule import LearningRate
from resnet.weights import load_weights, read_weights, start_from
from tests.support.training.resnet_reference import logits, random_weights


@pytest.fixture(scope="module")
def model() -> ResNet:
    torch.manual_seed(0)
    return resnet50()


def test_counts(model: ResNet) -> None:
    parameters = list(model.parameters())
    assert sum(p.numel() for p in parameters) == 25_557_032
    assert len(parameters) == 161
    assert len(model.state_dict()) == 320
    assert sum(p.numel() for p in resnet18().parameters()) == 11_689_512


def test_keys_are_torchvisions(model: ResNet) -> None:
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


def test_the_stride_is_on_the_three_by_three(model: ResNet) -> None:
    first = model.get_submodule("layer2.0")
    strides = [first.get_submodule(f"conv{n}").stride for n in (1, 2, 3)]
    assert strides == [(1, 1), (2, 2), (1, 1)]


def test_weights_without_batch_counters_load(model: ResNet) -> None:
    weights = {k: v for k, v in model.state_dict().items() if "num_batches" not in k}
    assert len(weights) == 267
    fresh = resnet50()
    load_weights(fresh, weights, Path("a.pt"))
    assert all(fresh.state_dict()[key].equal(value) for key, value in weights.items())
    with pytest.raises(UsageError, match=r"a\.pt do not fit ResNet-50 of 1000 classes"):
        load_weights(fresh, {k: v for k, v in weights.items() if k != "conv1.weight"}, Path("a.pt"))


@pytest.mark.parametrize("name", sorted(MODELS))
def test_torchvisions_weights_give_what_the_papers_network_gives(name: str, tmp_path: Path) -> None:
    weights = random_weights(name, classes=7)
    # torchvision's files are bare; Horovod's and torchvision's examples write dicts of more.
    wrapped = {"module." + key: value for key, value in weights.items()}
    torch.save(weights, tmp_path / "bare.pth", _use_new_zipfile_serialization=False)
    torch.save({"model": wrapped, "epoch": 3}, tmp_path / "example.pth")
    images = torch.randn(2, 3, 64, 48)
    for path in sorted(tmp_path.iterdir()):
        model = MODELS[name](7).eval()
        assert set(model.state_dict()) == set(weights)
        load_weights(model, read_weights(path)[0], path)
        with torch.inference_mode():
            torch.testing.assert_close(model(images), logits(weights, images), rtol=1e-4, atol=1e-4)
    # Of other classes all but the last layer is taken over.
    tuned = MODELS[name](3)
    own = {key: value.clone() for key, value in tuned.state_dict().items()}
    start_from(tuned, tmp_path / "bare.pth")
    for key, value in tuned.state_dict().items():
        assert value.equal(own[key] if key.startswith("fc.") else weights[key])


def test_weights_of_something_else_are_refused(tmp_path: Path) -> None:
    torch.save({"head.0.weight": torch.zeros(1)}, tmp_path / "edsr.pt")
    with pytest.raises(UsageError, match="holds no weights of a ResNet"):
        read_weights(tmp_path / "edsr.pt")
    torch.save({"kind": "edsr", "model": {}}, tmp_path / "other.pt")
    with pytest.raises(UsageError, match="is a checkpoint of 'edsr', not of 'resnet'"):
        read_weights(tmp_path / "other.pt")


@pytest.mark.parametrize("name", sorted(MODELS))
def test_a_fresh_network_is_as_the_recipe_has_it(name: str) -> None:
    model = MODELS[name](zero_init_residual=True)
    block = model.get_submodule("layer1.1").eval()
    x = torch.rand(1, {"resnet18": 64, "resnet50": 256}[name], 8, 8)
    assert block(x).equal(x)
    assert model.fc.weight.std().item() == pytest.approx(0.01, rel=0.01)
    assert not model.fc.bias.any()


def test_batch_norms_do_not_decay() -> None:
    model = resnet18()
    args = SimpleNamespace(base_lr=0.1, momentum=0.9, wd=1e-4)
    decays = {
        id(p): group["weight_decay"]
        for group in sgd(args, model).param_groups
        for p in group["params"]
    }
    for name, parameter in model.named_parameters():
        kept = "bn" in name or "downsample.1" in name
        assert decays[id(parameter)] == (0 if kept else 1e-4), name


def rates(schedule: str, epochs: int, warmup: float, *at: float) -> list[float]:
    rate = LearningRate(0.1, 0.8, epochs, warmup, schedule)
    return [rate.at(epoch) for epoch in at]


def test_the_rate_at_given_epochs() -> None:
    # From that of one batch to that of all, by the same amount at each step.
    assert rates("steps", 90, 5, 0, 2.5, 4, 5) == pytest.approx([0.1, 0.45, 0.66, 0.8])
    edges = (29.99, 30, 59.99, 60, 79.99, 80, 90)
    assert rates("steps", 90, 5, *edges) == pytest.approx(
        [0.8, 0.08, 0.08, 0.008, 0.008, 0.0008, 0.0008]
    )
    # The milestones follow --epochs.
    assert rates("steps", 18, 5, 5.99, 6, 11.99, 12, 15.99, 16) == pytest.approx(
        [0.8, 0.08, 0.08, 0.008, 0.008, 0.0008]
    )
    assert rates("cosine", 90, 5, 2.5, 5, 47.5, 90) == pytest.approx([0.45, 0.8, 0.4, 0])
    assert rates("cosine", 90, 0, 0, 30, 60) == pytest.approx([0.8, 0.6, 0.2])
    assert rates("cosine", 20, 0, 10) == pytest.approx([0.4])


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
    loaded = list(load_batches(batches, lambda i: centred(images[i], 32), workers=3))
    assert [labels.tolist() for _, labels in loaded] == [[1, 0], [0, 1], [0], [1], [0, 0, 0]]
    assert loaded[4][0].shape == (3, 3, 32, 32)
    assert loaded[0][0].dtype == torch.uint8
    red = normalised(loaded[0][0])[:, 0].mean((1, 2)) * 0.229 + 0.485
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
