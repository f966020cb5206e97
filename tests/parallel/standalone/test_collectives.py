"""Every collective of Horovod's interface without Horovod, against numpy."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

from tests.support.launch.launching import WITHOUT_HOROVOD

IN_LONG = [pytest.param(size, marks=pytest.mark.long) for size in (1, 2, 4)]
pytestmark = pytest.mark.ranks(3, *IN_LONG, env=WITHOUT_HOROVOD)

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int64, torch.int32, torch.int8, torch.uint8)
MOVED = (*FLOATS, *INTEGERS, torch.int16, torch.bool, torch.complex64)
SHAPES = ((), (0,), (5,), (3, 0, 2), (4, 3, 2))


def values(rank: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A rank's tensor: small whole numbers, whose sums are exact in every type."""
    draw = torch.Generator().manual_seed(100 + rank)
    return torch.randint(0, 4, shape, generator=draw).to(dtype)


def of_all(size: int, shape: tuple[int, ...], dtype: torch.dtype) -> np.ndarray:
    return np.stack([values(r, shape, dtype).double().numpy() for r in range(size)])


def equal(result: torch.Tensor, expected: np.ndarray) -> bool:
    return np.array_equal(result.double().numpy(), expected)


def test_ranks_and_questions_are_answered(hvd, comm):
    from mpi4py import MPI

    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    assert (hvd.rank(), hvd.size()) == (comm.rank, comm.size)
    assert (hvd.local_rank(), hvd.local_size()) == (node.rank, node.size)
    assert (hvd.cross_rank(), hvd.cross_size()) == (0, 1)
    node.Free()
    assert not hvd.horovods.INSTALLED
    assert hvd.is_initialized()
    assert hvd.mpi_built()
    assert hvd.mpi_enabled()
    assert hvd.mpi_threads_supported()
    for name in ("gloo_built", "gloo_enabled", "ddl_built", "ccl_built", "cuda_built"):
        assert getattr(hvd, name)() is False
    assert hvd.rocm_built() is False
    assert hvd.nccl_built() == 0
    everyone = hvd.global_process_set
    assert (everyone.size(), everyone.rank()) == (comm.size, comm.rank)
    assert everyone.included()
    assert everyone.ranks == list(range(comm.size))
    hvd.init()  # again: without effect


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
def test_allreduce_is_numpys(hvd, dtype):
    size, rank = hvd.size(), hvd.rank()
    reduce = {hvd.Sum: np.sum, hvd.Min: np.min, hvd.Max: np.max, hvd.Product: np.prod}
    for shape in SHAPES:
        mine, everyones = values(rank, shape, dtype), of_all(size, shape, dtype)
        for op, function in reduce.items():
            assert equal(hvd.allreduce(mine, op=op), function(everyones, 0))
        mean = everyones.mean(0)
        if not dtype.is_floating_point:
            mean = np.trunc(mean)
        average = hvd.allreduce(mine).double().numpy()
        np.testing.assert_allclose(
            average, mean, rtol=torch.finfo(dtype).eps if dtype in FLOATS else 0
        )
        assert equal(mine, everyones[rank])  # stays as it was
        assert hvd.allreduce_(mine, op=hvd.Sum) is mine
        assert equal(mine, everyones.sum(0))


def test_factors_scale_before_and_after(hvd):
    size, rank = hvd.size(), hvd.rank()
    for dtype in FLOATS:
        everyones = of_all(size, (4, 3), dtype)
        result = hvd.allreduce(
            values(rank, (4, 3), dtype), op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0
        )
        assert equal(result, 4.0 * (0.5 * everyones).sum(0))
    everyones = of_all(size, (4, 3), torch.int32)
    result = hvd.allreduce(values(rank, (4, 3), torch.int32), op=hvd.Sum, prescale_factor=1.6)
    assert equal(result, np.trunc(1.6 * everyones).sum(0))


def test_groups_are_reduced_together(hvd):
    size, rank = hvd.size(), hvd.rank()
    dtypes = (torch.float32, torch.int64, torch.bfloat16)
    tensors = [values(rank, (3, 2), dtype) for dtype in dtypes]
    sums = [of_all(size, (3, 2), dtype).sum(0) for dtype in dtypes]
    results = hvd.grouped_allreduce(tensors, op=hvd.Sum, name="group")
    assert all(map(equal, results, sums))
    results = hvd.synchronize(hvd.grouped_allreduce_async(tensors, op=hvd.Sum))
    assert all(map(equal, results, sums))
    handle = hvd.grouped_allreduce_async_(tensors, op=hvd.Sum)
    assert all(a is b for a, b in zip(hvd.synchronize(handle), tensors, strict=True))
    assert all(map(equal, tensors, sums))
    results = hvd.grouped_allreduce_([torch.ones(2), torch.ones(3)], op=hvd.Sum)
    assert [t.tolist() for t in results] == [[size] * 2, [size] * 3]


def test_compression_halves_what_is_sent_and_gives_the_type_back(hvd):
    size = hvd.size()
    for tensor in (torch.full((3,), 1.5), torch.full((3,), 2)):
        result = hvd.allreduce(tensor, op=hvd.Sum, compression=hvd.Compression.fp16)
        assert result.dtype == tensor.dtype
        assert equal(result, size * tensor.double().numpy())


def test_the_old_argument_average_counts_with_a_warning(hvd):
    with pytest.warns(DeprecationWarning, match="average"):
        result = hvd.allreduce(torch.ones(2), average=False)
    assert result.tolist() == [hvd.size()] * 2
    with pytest.raises(ValueError, match="average and op"):
        hvd.allreduce(torch.ones(2), average=True, op=hvd.Sum)


@pytest.mark.parametrize("dtype", MOVED, ids=str)
def test_what_is_moved_arrives_in_every_type(hvd, dtype):
    size, rank = hvd.size(), hvd.rank()
    everyones = [values(r, (r + 1, 2), dtype) for r in range(size)]
    assert torch.equal(hvd.allgather(everyones[rank]), torch.cat(everyones))
    for root in range(size):
        mine = values(rank, (4, 3), dtype)
        assert torch.equal(hvd.broadcast(mine, root), values(root, (4, 3), dtype))
        assert torch.equal(mine, values(rank, (4, 3), dtype))
        assert hvd.broadcast_(mine, root_rank=root) is mine
        assert torch.equal(mine, values(root, (4, 3), dtype))
    handle = hvd.broadcast_async(values(rank, (), dtype), 0)
    assert torch.equal(hvd.synchronize(handle), values(0, (), dtype))


def test_ranks_may_have_no_rows(hvd):
    size, rank = hvd.size(), hvd.rank()
    for rows in ([0] * size, [3 * (r % 2) for r in range(size)]):
        everyones = [values(r, (rows[r], 3), torch.float32) for r in range(size)]
        assert torch.equal(hvd.allgather(everyones[rank]), torch.cat(everyones))
    pair = [torch.full((rank, 2), rank), torch.full((1,), float(rank))]
    one, other = hvd.grouped_allgather(pair)
    assert one.shape == (sum(range(size)), 2)
    assert other.tolist() == list(range(size))


def test_alltoall_sends_rows_where_they_belong(hvd):
    size, rank = hvd.size(), hvd.rank()
    # Rank r sends r + to rows, each its number and its receiver's.
    rows = [[(r, to)] * (r + to) for r in range(size) for to in range(size)]
    sent = [row for r, to in [(rank, to) for to in range(size)] for row in rows[r * size + to]]
    tensor = torch.tensor(sent, dtype=torch.float32).reshape(-1, 2)
    expected = [row for r in range(size) for row in rows[r * size + rank]]
    splits = [rank + to for to in range(size)]
    received_splits = [r + rank for r in range(size)]
    for given in (splits, torch.tensor(splits), torch.tensor(splits, dtype=torch.int32)):
        output, received = hvd.alltoall(tensor, given)
        assert output.tolist() == [list(map(float, row)) for row in expected]
        assert received.tolist() == received_splits
        assert received.dtype == getattr(given, "dtype", torch.int32)
    even = hvd.alltoall(torch.arange(2 * size) + 100 * rank)
    assert even.tolist() == [100 * r + 2 * rank + i for r in range(size) for i in (0, 1)]


def test_reducescatter_gives_each_rank_its_rows(hvd):
    size, rank = hvd.size(), hvd.rank()
    for rows in (0, 1, 2 * size, 2 * size + 1):
        everyones = of_all(size, (rows, 3), torch.float64)
        own = np.array_split(np.arange(rows), size)[rank]
        mine = values(rank, (rows, 3), torch.float64)
        assert equal(hvd.reducescatter(mine, op=hvd.Sum), everyones.sum(0)[own])
        assert equal(mine, everyones[rank])
        half = hvd.reducescatter(mine, prescale_factor=0.5)
        np.testing.assert_allclose(half.numpy(), 0.5 * everyones.mean(0)[own], rtol=1e-15)
        one, other = hvd.grouped_reducescatter([mine, mine + 1], op=hvd.Max)
        assert equal(one, everyones.max(0)[own])
        assert equal(other, (everyones + 1).max(0)[own])


def test_gradients_go_through_as_through_horovods(hvd):
    size, rank = hvd.size(), hvd.rank()
    weight = torch.arange(6.0).reshape(3, 2) + rank
    mean = torch.arange(6.0).reshape(3, 2) + (size - 1) / 2

    def gradient(function, shape=(3, 2), weight=weight):
        x = torch.ones(shape, requires_grad=True)
        (function(x) * weight).sum().backward()
        return x.grad

    torch.testing.assert_close(gradient(lambda x: hvd.allreduce(x, op=hvd.Sum)), size * mean)
    torch.testing.assert_close(gradient(hvd.allreduce), mean)
    with pytest.warns(DeprecationWarning, match="average"):
        torch.testing.assert_close(gradient(lambda x: hvd.allreduce(x, average=False)), size * mean)
    factors = {"prescale_factor": 0.5, "postscale_factor": 3.0, "op": hvd.Sum}
    scaled = gradient(lambda x: hvd.grouped_allreduce([x], **factors)[0])
    torch.testing.assert_close(scaled, 1.5 * size * mean)
    root = size - 1
    expected = mean if rank == root else torch.zeros(3, 2)
    torch.testing.assert_close(gradient(lambda x: hvd.broadcast(x, root)), expected)
    long = torch.arange(3.0 * size)[:, None].expand(-1, 2) + rank
    own = torch.arange(3.0 * rank, 3.0 * rank + 3)[:, None].expand(-1, 2) + (size - 1) / 2
    torch.testing.assert_close(gradient(hvd.allgather, weight=long), own)
    torch.testing.assert_close(gradient(lambda x: hvd.grouped_allgather([x])[0], weight=long), own)
    # What came from rank r goes back to it.
    shape = (size, 2)
    back = gradient(hvd.alltoall, shape, torch.full(shape, float(rank)))
    assert back[:, 0].tolist() == list(range(size))
    shape, few = (2 * size, 2), torch.full((2, 2), rank + 1.0)
    back = gradient(lambda x: hvd.reducescatter(x, op=hvd.Sum), shape, few)
    assert back[:, 0].tolist() == [size * (r + 1.0) for r in range(size) for _ in range(2)]
    back = gradient(lambda x: hvd.reducescatter(x, postscale_factor=2.0), shape, few)
    assert back[:, 0].tolist() == [2 * (r + 1.0) for r in range(size) for _ in range(2)]


def test_sparse_tensors_are_summed(hvd):
    size, rank = hvd.size(), hvd.rank()
    dense = [torch.zeros(7, 2) for _ in range(size)]
    for r in range(size):
        dense[r][r], dense[r][0] = 1.0, 2.0
    for op, divisor in ((hvd.Sum, 1), (hvd.Average, size)):
        result = hvd.sparse_allreduce_async(dense[rank].to_sparse(1), "sparse", op)()
        torch.testing.assert_close(result.to_dense(), sum(dense) / divisor)


def test_handles_say_when_they_are_done(hvd):
    handle = hvd.allreduce_async(torch.ones(3), op=hvd.Sum)
    hvd.barrier()
    assert hvd.poll(handle)
    assert hvd.synchronize(handle).tolist() == [hvd.size()] * 3
    assert hvd.synchronize(handle) is None
    with pytest.raises(ValueError, match="unknown"):
        hvd.poll(handle)


def test_objects_of_any_kind_and_length(hvd):
    size, rank = hvd.size(), hvd.rank()
    for root in range(size):
        mine = {"rank": rank, "tensor": torch.full((2,), rank), "text": "x" * 1000 * rank}
        theirs = hvd.broadcast_object(mine, root)
        assert (theirs["rank"], theirs["tensor"].tolist()) == (root, [root] * 2)
        assert len(theirs["text"]) == 1000 * root
    everyones = hvd.allgather_object([rank] * rank)
    assert everyones == [[r] * r for r in range(size)]
    with pytest.raises(hvd.HorovodInternalError, match="cannot be pickled"):
        hvd.broadcast_object(lambda: None, 0)
    with pytest.raises(hvd.HorovodInternalError, match="rank 0: an object of type function"):
        hvd.allgather_object((lambda: None) if rank == 0 else rank)


def test_parameters_and_buffers_are_broadcast(hvd):
    torch.manual_seed(hvd.rank())
    model = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 3), torch.nn.BatchNorm2d(3))
    model.to(memory_format=torch.channels_last)
    model[1].num_batches_tracked += hvd.rank()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_parameters(list(model.named_parameters()), root_rank=0)
    torch.manual_seed(0)
    same = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 3), torch.nn.BatchNorm2d(3))
    for name, tensor in same.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor), name
    with pytest.raises(ValueError, match="list"):
        hvd.horovods.broadcast_parameters(3, 0)


def test_long_messages_go_in_pieces(hvd, monkeypatch):
    from hvd_ext.allreduce.algorithms import segments
    from hvd_ext.torch.standalone import transfers

    for module in (segments, transfers):
        monkeypatch.setattr(module, "MOST_BYTES", 24)
    size, rank = hvd.size(), hvd.rank()
    everyones = [values(r, (r + 10, 3), torch.float32) for r in range(size)]
    assert torch.equal(hvd.allgather(everyones[rank]), torch.cat(everyones))
    assert torch.equal(
        hvd.broadcast(values(rank, (50,), torch.int8), 0), values(0, (50,), torch.int8)
    )


def test_no_thread_or_file_is_left_by_many_collectives(hvd):
    def open_files() -> int:
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208

    for _ in range(3):
        hvd.allreduce(torch.ones(3))
    before = open_files()
    for _ in range(200):
        hvd.allreduce(torch.ones(3))
        hvd.allgather(torch.ones(1, 2))
    assert open_files() == before


def test_tensors_that_mpi_does_not_read_go_by_copies_on_the_host(hvd, comm, monkeypatch):
    """As those on a GPU, in whose place others are taken for such."""
    from hvd_ext.torch.standalone import handles

    monkeypatch.setattr(handles, "is_on_gpu", lambda _: True)
    copies, copy_of = [], handles._copy_of
    monkeypatch.setattr(handles, "_copy_of", lambda t: copies.append(copy_of(t)) or copies[-1])
    own, every = values(comm.rank, (6, 2), torch.float32), of_all(comm.size, (6, 2), torch.float32)
    kept = own.clone()
    assert equal(hvd.allreduce(own, op=hvd.Sum, name="a"), every.sum(0))
    assert equal(hvd.allgather(own, name="g"), np.concatenate(every))
    assert equal(hvd.broadcast(own, 1 % comm.size, name="b"), every[1 % comm.size])
    rows = hvd.reducescatter(own, op=hvd.Sum, name="r")
    assert equal(rows, np.array_split(every.sum(0), comm.size)[comm.rank])
    splits = [6] + [0] * (comm.size - 1)
    found, received = hvd.alltoall(own, splits, name="t")
    first = comm.rank == 0
    assert equal(found, np.concatenate(every) if first else every[0][:0])
    assert received.tolist() == [6 * first] * comm.size
    assert torch.equal(own, kept)
    assert hvd.allreduce_(own, op=hvd.Max, name="m") is own
    assert equal(own, every.max(0))
    both = hvd.grouped_allreduce_([own, kept], op=hvd.Min, name="n")
    assert both[1] is kept
    assert equal(kept, every.min(0))
    assert hvd.broadcast_(own, 0, name="c") is own
    assert len(copies) == 9
