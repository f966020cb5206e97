"""Checkpoints and state of a sharded optimizer: as one process has them."""

from __future__ import annotations

import copy
import dataclasses
import io

import pytest
import torch

from hvd_ext.errors import StallError
from hvd_ext.torch.job import lifecycle
from hvd_ext.torch.sharded import shards
from tests.support.optimizer.sharding import (
    Net,
    assert_same_state,
    build_same,
    take_same_steps,
    train,
)

# Shards of three ranks are the unevenest.
TWO, FOUR = (pytest.param(number, marks=pytest.mark.long) for number in (2, 4))


@pytest.fixture(autouse=True)
def several_parts_of_a_parameter(monkeypatch):
    monkeypatch.setattr(shards, "_PART_BYTES", 1 << 10)


@pytest.mark.ranks(3)
def test_a_checkpoint_of_the_model_holds_the_model_alone(comm, hvd):
    model, _ = train(True, 6)
    plain = Net()
    plain.load_state_dict(model.state_dict())
    files = [io.BytesIO(), io.BytesIO()]
    for held, file in zip((model, plain), files, strict=True):
        torch.save(held.state_dict(), file)
    assert files[0].tell() == files[1].tell()


@pytest.mark.ranks(3)
def test_state_is_asked_for_on_every_rank(comm, hvd, monkeypatch):
    _, optimizer = train(True, 1)
    monkeypatch.setenv("HVD_EXT_STALL_TIMEOUT_S", "0.5")
    # What rank 0 waits for in vain must not be there for what comes next.
    of_its_own = dataclasses.replace(lifecycle.topology(), world=comm)
    monkeypatch.setattr(lifecycle, "topology", lambda: of_its_own)
    if comm.rank == 0:
        with pytest.raises(
            StallError, match=r"ranks 1 .*, 2 .* did not reach state_dict\(\) of a sharded"
        ):
            optimizer.state_dict()
    comm.Barrier()


@pytest.mark.long
def test_state_that_not_every_rank_asks_for_ends_the_job(launch):
    done = launch(
        2,
        ["tests/programs/optimizer/sharded_state.py", "on_rank_0"],
        env={"HVD_EXT_STALL_TIMEOUT_S": "2"},
    )
    assert done.returncode != 0
    assert "did not reach state_dict() of a sharded optimizer" in done.stdout


@pytest.mark.ranks(TWO, 3, FOUR)
@pytest.mark.parametrize("sharded", [True, False])
def test_a_checkpoint_is_that_of_one_process(comm, hvd, sharded):
    """What ranks save, one process would have saved; and they go on from what it saved."""
    alone, plain = build_same()
    take_same_steps(alone, plain, 6)
    saved = reread(alone, plain)
    model, optimizer = build_same()
    optimizer = hvd.DistributedOptimizer(optimizer, sharded=sharded)
    take_same_steps(model, optimizer, 6)
    ours = reread(model, optimizer)
    resumed, inner = build_same()
    resumed_optimizer = hvd.DistributedOptimizer(inner, sharded=sharded)
    resumed.load_state_dict(saved["model"])
    resumed_optimizer.load_state_dict(copy.deepcopy(saved["optimizer"]))
    for a, b in ((alone, plain), (resumed, resumed_optimizer)):
        take_same_steps(a, b, 6)
    theirs = saved["model"] | {f"resumed {name}": p for name, p in alone.state_dict().items()}
    found = ours["model"] | {f"resumed {name}": p for name, p in resumed.state_dict().items()}
    # Averaging equal gradients is exact on 2 and on 4 ranks.
    limits = {"rtol": 1e-4, "atol": 1e-6} if comm.size == 3 else {"rtol": 0, "atol": 0}
    torch.testing.assert_close(found, theirs, **limits)
    if comm.size != 3:
        assert_same_state(ours["optimizer"], saved["optimizer"])


def reread(model, optimizer):
    """A checkpoint, as a file gives it back."""
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.long
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (("sharded", 4), ("unsharded", 2)),
        (("unsharded", 2), ("sharded", 4)),
        (("sharded", 3), ("sharded", 2)),
    ],
)
def test_a_checkpoint_is_resumed_either_way(launch, tmp_path, before, after):
    for kind, count in (before, after):
        done = launch(
            count, ["tests/programs/optimizer/sharded_state.py", kind, tmp_path / "saved.pt"]
        )
        assert done.returncode == 0, done.stdout
        assert done.stdout.count("ok ") == count
