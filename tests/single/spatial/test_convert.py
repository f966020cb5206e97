"""convert, verify and the hyperslab reader, on ranks emulated in this process."""

from __future__ import annotations

import collections
import copy
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hvd_ext import spatial
from hvd_ext.errors import UsageError
from hvd_ext.spatial import GridShape, ProcessGrid, SpatialTensor
from hvd_ext.spatial.exchange import emulator
from hvd_ext.spatial.exchange.communicator import Communicator

TWO_BY_TWO = {"height": 2, "width": 2}


# Emulated ranks share torch's generator: weights are drawn once, before there are any.
MODEL = nn.Sequential(
    nn.Conv2d(2, 3, 3, padding=1), nn.Conv2d(3, 4, 5, stride=2), nn.Conv2d(4, 2, 3, padding=1)
).double()


def network() -> nn.Sequential:
    return copy.deepcopy(MODEL)


def test_keys_and_checkpoints_are_the_same_both_ways() -> None:
    plain = network()
    keys = list(plain.state_dict())

    def work(comm: Communicator) -> dict[str, Tensor]:
        split = spatial.convert(network(), ProcessGrid(**TWO_BY_TWO, comm=comm))
        assert [name for name, _ in split.named_parameters()] == keys
        nn.init.zeros_(split.get_submodule("1").bias)
        split.load_state_dict(plain.state_dict())
        return dict(split.state_dict())

    for state in emulator.run(4, work):
        assert list(state) == keys
        plain.load_state_dict(state)


def test_whole_tensors_are_scattered_and_partitioned_ones_taken() -> None:
    x = torch.randn(1, 2, 11, 9, dtype=torch.float64)
    expected = network()(x)

    def work(comm: Communicator) -> list[Tensor]:
        grid = ProcessGrid(**TWO_BY_TWO, comm=comm)
        model = spatial.convert(network(), grid)
        outputs = [model(x), model(spatial.scatter(x, grid))]
        assert all(isinstance(y, SpatialTensor) for y in outputs)
        return [spatial.gather(y) for y in outputs]

    for outputs in emulator.run(4, work):
        for output in outputs:
            torch.testing.assert_close(output, expected, rtol=0, atol=1e-13)


def test_gather_before_a_layer_makes_the_rest_ordinary() -> None:
    x = torch.randn(1, 2, 11, 9, dtype=torch.float64)

    def work(comm: Communicator) -> Tensor:
        grid = ProcessGrid(**TWO_BY_TWO, comm=comm)
        output = spatial.convert(network(), grid, gather_before=["2"])(x)
        assert isinstance(output, Tensor)
        return output

    for output in emulator.run(4, work):
        torch.testing.assert_close(output, network()(x), rtol=0, atol=1e-13)
    report = spatial.verify(network(), (1, 2, 11, 9), GridShape(**TWO_BY_TWO), gather_before=["2"])
    assert report.passed, report


def test_bad_requests_are_refused_with_names() -> None:
    def work(comm: Communicator) -> None:
        grid = ProcessGrid(height=1, comm=comm)
        with pytest.raises(UsageError, match=r"unknown submodule 'neck' .* 0, 1, 2"):
            spatial.convert(network(), grid, gather_before=["neck"])
        model = spatial.convert(network(), grid)
        with pytest.raises(UsageError, match="is already converted"):
            spatial.convert(model, grid)

    emulator.run(1, work)


class Odd(nn.Module):
    """Sorts pixels, which cannot be split."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.sort(x, dim=-2).values


def test_a_refusal_names_the_layer_on_every_rank_and_no_later_one() -> None:
    model = nn.Sequential(nn.Conv2d(1, 1, 3), Odd())

    def work(comm: Communicator) -> str:
        split = spatial.convert(nn.Sequential(nn.Conv2d(1, 1, 3), Odd()), grid_of(comm))
        with pytest.raises(spatial.UnsupportedError) as caught:
            split(torch.zeros(1, 1, 8, 8))
        with pytest.raises(spatial.UnsupportedError) as outside:
            torch.sort(spatial.scatter(torch.zeros(1, 1, 8, 8), grid_of(comm)), dim=-2)
        assert "layer" not in str(outside.value)
        return str(caught.value)

    sentences = emulator.run(2, work)
    assert len(set(sentences)) == 1
    assert sentences[0].startswith("layer '1': ")
    assert "sort" in sentences[0]
    with pytest.raises(spatial.UnsupportedError, match="layer '1'"):
        spatial.verify(model, (1, 1, 8, 8), GridShape(height=2))
    with pytest.raises(spatial.UnsupportedError, match="layer '1'"):
        spatial.plan(model, (1, 1, 8, 8), GridShape(height=2), speeds=spatial.Speeds(1, 1, 1))


def grid_of(comm: Communicator) -> ProcessGrid:
    return ProcessGrid(height=comm.size, comm=comm)


def test_a_refusal_names_the_way_round_it_and_that_way_works() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Sequential(nn.ReLU(), Odd()), nn.Conv2d(2, 1, 3))
    shape, grid = (1, 1, 9, 9), GridShape(height=2)
    with pytest.raises(spatial.UnsupportedError, match=r"gather_before=\['1.1'\]"):
        spatial.verify(model, shape, grid)
    report = spatial.verify(model, shape, grid, gather_before=["1.1"])
    assert report.passed, report
    # The model itself is no submodule.
    with pytest.raises(spatial.UnsupportedError, match="layer 'Odd'") as caught:
        spatial.verify(Odd(), shape, grid)
    assert "gather_before" not in str(caught.value)


@dataclasses.dataclass(frozen=True)
class State:
    """Tensors that a module is given, and a list that it changes."""

    last: Any
    seen: list[Any]


class Recurrent(nn.Module):
    """Writes into whatever container it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 2, 3, padding=1)

    def forward(self, x: Any, state: State, *, cache: dict[str, Any], pair: Any) -> Any:
        kept, (deep,) = pair
        y = self.conv(x) + state.last + sum(state.seen) + cache.get("y", 0) + sum(kept) + deep["z"]
        state.seen.append(y * 2)
        cache["y"], deep["z"] = y * 3, y * 5
        kept[:] = [y * 7]
        return y


class TwoSteps(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.step = nn.Conv2d(2, 2, 1), Recurrent()

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        state, cache = State(x, [x * 11]), collections.defaultdict(int, w=x)
        kept, deep = [x], {"z": x}
        cache["itself"] = cache
        for _ in range(2):
            x = self.step(x, state, cache=cache, pair=(kept, (deep,)))
        return x + state.seen[-1] + cache["y"] + kept[0] + deep["z"] + cache["w"]


def test_containers_that_a_gathered_module_changes_are_the_callers() -> None:
    torch.manual_seed(0)
    report = spatial.verify(TwoSteps(), (1, 2, 6, 8), GridShape(height=2), gather_before=["step"])
    assert report.passed, report


class Tokens(nn.Module):
    """Cells in a row, as a transformer has them, and back."""

    def forward(self, x: Any) -> Any:
        return x.flatten(2).transpose(1, 2).transpose(1, 2).reshape(x.shape)


def test_gathers_that_nobody_asked_for_are_said_or_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def model() -> nn.Sequential:
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(2, 3, 1), Tokens(), nn.Conv2d(3, 3, 3)).double()

    x = torch.randn(1, 2, 8, 6, dtype=torch.float64)
    models = [model() for _ in range(4)]

    def work(comm: Communicator, allow_gather: bool) -> Any:
        grid = ProcessGrid(**TWO_BY_TWO, comm=comm)
        split = spatial.convert(models[comm.rank], grid, allow_gather=allow_gather)
        return [split(x), split(x)]

    for outputs in emulator.run(4, lambda comm: work(comm, allow_gather=True)):
        torch.testing.assert_close(outputs[0], model()(x))
    (line,) = [record.message for record in caplog.records if "every rank" in record.message]
    assert "layer '1'" in line
    assert "1.125 KiB" in line
    plan = spatial.plan(
        model().float(),
        x.shape,
        GridShape(height=2),
        speeds=spatial.Speeds(1e9, 1e9, 0),
        gather_before=(),
        split_filters=(),
    )
    assert [layer.name for layer in plan.whole_layers] == ["2"]
    assert "from 2 on every rank computes the whole" in str(plan)
    models = [model() for _ in range(4)]
    with pytest.raises(spatial.UnsupportedError, match=r"layer '1': .* allow_gather=False"):
        emulator.run(4, lambda comm: work(comm, allow_gather=False))


class Rankwise(nn.Module):
    """Wrong on purpose: every rank shifts its own shard."""

    def forward(self, x: Any) -> Any:
        if isinstance(x, SpatialTensor):
            return x.like(x.local.roll(1, dims=-1))
        return x.roll(1, dims=-1)


def test_verify_finds_a_layer_that_is_wrong() -> None:
    right = spatial.verify(network(), (1, 2, 9, 9), GridShape(height=3))
    assert right.passed
    assert "equals unsplit" in str(right)
    model = nn.Sequential(nn.Conv2d(2, 3, 3), Rankwise())
    wrong = spatial.verify(model, (1, 2, 9, 9), GridShape(width=3))
    assert not wrong.passed
    assert "DIFFERS FROM" in str(wrong)
    assert "gradient of 0.weight" in str(wrong)
    assert all(p.grad is None for p in model.parameters())


class Unsound(nn.Module):
    """Not a number on one rank: its gradient, or its buffer."""

    def __init__(self, in_gradient: bool) -> None:
        super().__init__()
        self.in_gradient = in_gradient
        self.scale = nn.Parameter(torch.ones(1))
        self.register_buffer("number", torch.ones(1))
        self.register_buffer("nothing", torch.ones(0))

    def forward(self, x: Any) -> Any:
        scale = self.scale
        if isinstance(x, SpatialTensor) and x.box[-1][0] > 0:
            if self.in_gradient:
                scale = scale + (scale - scale.detach()).sqrt() * 0
            else:
                self.number.fill_(torch.nan)
        return x * scale


@pytest.mark.parametrize(
    ("in_gradient", "name"), [(True, "gradient of scale"), (False, "buffer number")]
)
def test_verify_passes_nothing_that_is_not_a_number(in_gradient: bool, name: str) -> None:
    report = spatial.verify(Unsound(in_gradient), (1, 1, 4, 4), GridShape(width=2))
    assert not report.passed
    assert f"the worst is {name} by nan" in str(report)


def test_backward_hooks_are_no_silent_loss() -> None:
    def work(comm: Communicator) -> int:
        heard = []
        for name in ("1", ""):
            model = spatial.convert(network(), grid_of(comm))
            hooked = model.get_submodule(name)
            handle = hooked.register_full_backward_hook(lambda *given: heard.append(given))
            with pytest.raises(
                spatial.UnsupportedError, match=f"layer '{name or 'Sequential'}': .* hook"
            ):
                model(torch.zeros(1, 2, 9, 9).double())
            handle.remove()
            model(torch.zeros(1, 2, 9, 9).double())
        # Behind a gather tensors are ordinary ones.
        model = spatial.convert(network(), grid_of(comm), gather_before=["2"])
        model[2].register_full_backward_hook(lambda *given: heard.append(given))
        model(torch.zeros(1, 2, 9, 9).double()).sum().backward()
        return len(heard)

    assert emulator.run(2, work) == [1, 1]


class Watched:
    """An array that notes what is asked of it, as an h5py.Dataset is asked."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array, self.asked = array, 0
        self.shape = array.shape

    def __getitem__(self, index: tuple[slice, ...]) -> Any:
        block = self.array[index]
        self.asked += block.size
        return block


@pytest.mark.parametrize("order", ["<f4", ">f4", "<f8", "<i2", "?"])
def test_each_rank_reads_its_block_and_no_more(tmp_path: Path, order: str) -> None:
    rng = np.random.default_rng(0)
    array = (100 * rng.standard_normal((5, 3, 7, 6, 5))).astype(order)
    np.save(tmp_path / "a.npy", array)

    def work(comm: Communicator) -> tuple[Tensor, int]:
        grid = ProcessGrid(depth=2, width=3, comm=comm)
        watched = Watched(array)
        mine = spatial.read(watched, grid, [4, 1])
        mapped = spatial.read(spatial.open_array(tmp_path / "a.npy"), grid, [4, 1])
        assert isinstance(mine, SpatialTensor)
        assert isinstance(mapped, SpatialTensor)
        assert mine.local.equal(mapped.local)
        return spatial.gather(mine), watched.asked

    results = emulator.run(6, work)
    assert sum(asked for _, asked in results) == array[:2].size
    expected = torch.from_numpy(array[[4, 1]].astype("f4"))
    assert all(whole.equal(expected) for whole, _ in results)


def test_what_has_no_space_is_read_whole() -> None:
    labels = np.arange(12.0).reshape(4, 3)

    def work(comm: Communicator) -> Any:
        return spatial.read(labels, ProcessGrid(height=2, comm=comm), [2])

    assert [x.tolist() for x in emulator.run(2, work)] == [[[6, 7, 8]]] * 2


def test_bad_files_and_samples_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.npy does not exist"):
        spatial.open_array(tmp_path / "none.npy")
    (tmp_path / "text.npy").write_text("no array")
    np.save(tmp_path / "cut.npy", np.zeros((4, 4)))
    whole = (tmp_path / "cut.npy").read_bytes()
    (tmp_path / "cut.npy").write_bytes(whole[:-8])
    np.save(tmp_path / "object.npy", np.array([{}]), allow_pickle=True)
    np.savez(tmp_path / "many.npz", a=np.zeros(3))
    for name in ("text.npy", "cut.npy", "object.npy"):
        with pytest.raises(UsageError, match=f"{name} is not a \\.npy file"):
            spatial.open_array(tmp_path / name)
    for name, kind in (("many.npz", None), ("names.npy", "names")):
        if kind:
            np.save(tmp_path / name, np.array(["a"]))
        with pytest.raises(UsageError, match="does not hold real numbers"):
            spatial.open_array(tmp_path / name)

    def work(comm: Communicator) -> None:
        grid = ProcessGrid(comm=comm)
        for sample in (-1, 4):
            with pytest.raises(UsageError, match=rf"sample {sample} is not in 0\.\.3"):
                spatial.read(np.zeros((4, 1, 2)), grid, [sample])

    emulator.run(1, work)
