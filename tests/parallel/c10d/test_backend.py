"""The backend's collectives give what plain tensors give, in the node's memory and by messages."""

from __future__ import annotations

import random

import pytest
import torch
import torch.distributed as dist

from hvd_ext.errors import MismatchError
from tests.ranks.asserts import parallel_assert
from tests.support.c10d.references import (
    FLOATS,
    LENGTHS,
    LONG,
    OTHERS,
    data,
    operations,
    reduced,
)

pytestmark = [
    pytest.mark.usefixtures("backend"),
    pytest.mark.ranks(
        pytest.param(1, marks=pytest.mark.long), 2, 3, pytest.param(4, marks=pytest.mark.long)
    ),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@pytest.fixture
def group(new_group):
    """A process group of all ranks: of one node, or of nodes of up to two ranks."""
    return new_group()


class Compared:
    """Tensors that were compared; the ranks judge them together, once."""

    def __init__(self):
        self.wrong = []

    def __call__(self, got, want, what):
        got, want = got.detach(), want.detach()
        if got.dtype != want.dtype or not torch.equal(got, want):
            self.wrong.append((what, got.flatten()[:5], want.flatten()[:5]))


@pytest.fixture
def same(comm):
    compared = Compared()
    yield compared
    parallel_assert(comm, not compared.wrong, compared.wrong[:3])


def test_reductions_of_every_dtype(comm, group, same):
    rank, size = comm.rank, comm.size
    for seed, dtype in enumerate(FLOATS + OTHERS):
        for op in operations(dtype):
            for n in LENGTHS:
                case = (dtype, op.name if hasattr(op, "name") else op, n)
                own, want = data(rank, seed, dtype, n, op=op), reduced(size, seed, dtype, op, n)
                got = own.clone()
                dist.all_reduce(got, op, group)
                same(got, want, case)
                got, root = own.clone(), seed % size
                dist.reduce(got, root, op, group)
                same(got, want if rank == root else own, case)
                every = reduced(size, seed, dtype, op, size, n)
                got = torch.empty(n, dtype=dtype)
                dist.reduce_scatter_single(got, data(rank, seed, dtype, size, n, op=op), op, group)
                same(got, every[rank], case)


def test_long_reductions(comm, group, same):
    for dtype in (torch.float32, torch.bfloat16, torch.int16):
        got = data(comm.rank, 1, dtype, LONG)
        dist.all_reduce(got, group=group)
        same(got, reduced(comm.size, 1, dtype, dist.ReduceOp.SUM, LONG), dtype)
        got = torch.empty(LONG, dtype=dtype)
        lists = list(data(comm.rank, 2, dtype, comm.size, LONG))
        dist.reduce_scatter(got, lists, dist.ReduceOp.MAX, group)
        want = reduced(comm.size, 2, dtype, dist.ReduceOp.MAX, comm.size, LONG)
        same(got, want[comm.rank], dtype)


def test_reductions_of_uneven_lists(comm, group, same):
    rank, size = comm.rank, comm.size
    parts = [data(rank, part, torch.float32, part, 3) for part in range(size)]
    got = torch.empty(rank, 3)
    dist.reduce_scatter(got, parts, group=group)
    same(got, reduced(size, rank, torch.float32, dist.ReduceOp.SUM, rank, 3), "uneven")


def test_copies_of_every_dtype(comm, group, same):
    rank, size = comm.rank, comm.size
    for dtype in (*FLOATS, *OTHERS, torch.complex64, torch.float8_e4m3fn):
        for n in (*LENGTHS, LONG if dtype == torch.float32 else 3):
            own, every = data(rank, n, dtype, n), [data(r, n, dtype, n) for r in range(size)]
            for root in range(size):
                got = own.clone()
                dist.broadcast(got, root, group)
                same(bits(got), bits(every[root]), (dtype, n))
                out = [torch.empty_like(own) for _ in every] if rank == root else None
                dist.gather(own, out, root, group)
                if rank == root:
                    same(bits(*out), bits(*every), (dtype, n))
                got = torch.empty_like(own)
                dist.scatter(got, every if rank == root else None, root, group)
                same(bits(got), bits(own), (dtype, n))
            out = [torch.empty_like(own) for _ in every]
            dist.all_gather(out, own, group)
            same(bits(*out), bits(*every), (dtype, n))
            got = torch.empty(size * n, dtype=dtype)
            dist.all_gather_into_tensor(got, own, group)
            same(bits(got), bits(*every), (dtype, n))


def bits(*tensors):
    return torch.cat([tensor.view(torch.uint8) for tensor in tensors])


def test_an_all_to_all_of_any_split(comm, group, same):
    rank, size = comm.rank, comm.size
    for seed in range(8):
        chance = random.Random(seed)
        most = (3, 400_000)[seed == 7]
        rows = [[chance.randint(0, most) for _ in range(size)] for _ in range(size)]
        parts = [
            [data(r, seed + t, torch.int32, rows[r][t], 2) for t in range(size)]
            for r in range(size)
        ]
        taken = [rows[r][rank] for r in range(size)]
        want = torch.cat([parts[r][rank] for r in range(size)])
        got = torch.empty(sum(taken), 2, dtype=torch.int32)
        dist.all_to_all_single(got, torch.cat(parts[rank]), taken, rows[rank], group)
        same(got, want, seed)
        outs = [torch.empty(n, 2, dtype=torch.int32) for n in taken]
        dist.all_to_all(outs, parts[rank], group)
        same(torch.cat(outs), want, seed)
    own = torch.arange(2 * size) + 100 * rank
    got = torch.empty_like(own)
    dist.all_to_all_single(got, own, group=group)
    want = torch.cat([torch.arange(2 * rank, 2 * rank + 2) + 100 * r for r in range(size)])
    same(got, want, "equal splits")


def test_tensors_that_lie_anyhow(comm, group, same):
    rank, size = comm.rank, comm.size
    base = torch.zeros(6, 8)
    view = base.t()[1::2]
    view += rank
    dist.all_reduce(view, group=group)
    want = torch.zeros(6, 8)
    want.t()[1::2] = sum(range(size))
    same(base, want, "strided")
    image = torch.full((2, 3, 4, 5), float(rank)).to(memory_format=torch.channels_last)
    dist.broadcast(image, size - 1, group)
    same(image, torch.full((2, 3, 4, 5), size - 1.0), "channels last")
    scalar = torch.tensor(float(rank), requires_grad=True)
    with torch.no_grad():
        dist.all_reduce(scalar, group=group)
    same(scalar.detach(), torch.tensor(float(sum(range(size)))), "0-d")
    complex_ = torch.full((3,), 1 + 2j)
    dist.all_reduce(complex_, group=group)
    same(complex_, torch.full((3,), size * (1 + 2j)), "complex")
    outs = [torch.zeros(4, 4).t()[:2] for _ in range(size)]
    dist.all_gather(outs, torch.full((4, 2), float(rank)).t(), group)
    same(torch.stack(outs).sum((1, 2)), 8.0 * torch.arange(size), "gathered")
    uneven = [torch.empty(r + 1) for r in range(size)]
    dist.all_gather(uneven, torch.full((rank + 1,), float(rank)), group)
    want = torch.cat([torch.full((r + 1,), float(r)) for r in range(size)])
    same(torch.cat(uneven), want, "uneven")


def test_objects_and_functional_collectives(comm, group, same):
    import torch.distributed._functional_collectives as functional

    rank, size = comm.rank, comm.size
    everyones = [None] * size
    dist.all_gather_object(everyones, {"rank": rank, "padding": "x" * rank}, group)
    parallel_assert(comm, [one["rank"] for one in everyones] == list(range(size)), everyones)
    said = [rank, "of", size]
    dist.broadcast_object_list(said, size - 1, group)
    parallel_assert(comm, said == [size - 1, "of", size], said)
    same(functional.all_reduce(torch.ones(3), "sum", group), torch.full((3,), 1.0 * size), "")
    got = functional.all_gather_tensor(torch.full((2,), rank), 0, group)
    same(got, torch.arange(size).repeat_interleave(2), "gathered")
    got = functional.reduce_scatter_tensor(torch.arange(size * 2), "sum", 0, group)
    same(got, size * torch.arange(2 * rank, 2 * rank + 2), "scattered")
    got = functional.all_to_all_single(torch.arange(size), None, None, group)
    same(got, torch.full((size,), rank), "exchanged")


@pytest.mark.parametrize("average", [False, True], ids=["sum", "average"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_sparse_tensors_are_added_in_rank_order(comm, group, same, dtype, average):
    """Each rank has other rows, one has none, and some have a row twice."""
    rows, columns = 40, 3
    every = []
    for rank in range(comm.size):
        generator = torch.Generator().manual_seed(rank)
        places = torch.randint(0, rows, (1, 9 * rank), generator=generator)
        values = torch.randn((9 * rank, columns), generator=generator).to(dtype)
        made = torch.sparse_coo_tensor(places, values, (rows, columns), check_invariants=True)
        every.append(made)
    got = every[comm.rank].clone()
    dist.all_reduce(got, dist.ReduceOp.AVG if average else dist.ReduceOp.SUM, group)
    wide = torch.float32 if dtype is torch.bfloat16 else dtype
    want = torch.zeros((rows, columns), dtype=wide)
    for one in every:
        want += one.coalesce().to_dense().to(wide)
    if average:
        want /= comm.size
    parallel_assert(comm, got.is_sparse, got)
    same(got.to_dense(), want.to(dtype), "summed")


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.complex64])
def test_averages_of_what_is_no_float_are_rounded_towards_zero(comm, group, same, dtype):
    every = [torch.tensor([7, 3 + rank, 100 - rank]).to(dtype) for rank in range(comm.size)]
    if dtype is torch.int64:
        every = [one - 50 for one in every]
    want = sum(every[1:], every[0]).div(
        comm.size, rounding_mode=None if dtype.is_complex else "trunc"
    )
    got = every[comm.rank].clone()
    dist.all_reduce(got, dist.ReduceOp.AVG, group)
    same(got, want.to(dtype), "averaged")
    if not dtype.is_complex:
        out = torch.empty(3, dtype=dtype)
        whole = every[comm.rank].repeat(comm.size)
        dist.reduce_scatter_single(out, whole, dist.ReduceOp.AVG, group)
        same(out, want.to(dtype), "scattered")


def test_sparse_tensors_of_other_shapes_are_refused_on_all_ranks(comm, group):
    if comm.size == 1:
        return
    own = torch.zeros(4 + comm.rank, 2).to_sparse(1)
    with pytest.raises(MismatchError, match="shapes, sparse dimensions or dtypes differ"):
        dist.all_reduce(own, group=group)


def test_a_coalescing_manager(comm, group, same):
    tensors = [torch.full((n,), 1.0 + comm.rank) for n in (3, 0, 50)]
    total = sum(range(1, comm.size + 1))
    with dist._coalescing_manager(group, async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor, group=group)
    manager.wait()
    parallel_assert(comm, all((t == total).all() for t in tensors), tensors)
    outs = [torch.empty(comm.size * n) for n in (1, 4)]
    with dist._coalescing_manager(group):
        for out in outs:
            own = torch.full((out.numel() // comm.size,), float(comm.rank))
            dist.all_gather_into_tensor(out, own, group)
    every = torch.arange(comm.size, dtype=torch.float32)
    same(torch.cat(outs), torch.cat([every, every.repeat_interleave(4)]), "gathered")
    with dist._coalescing_manager(group, torch.device("cpu"), async_ops=True) as manager:
        dist.broadcast(tensors[0], 0, group, async_op=True)
        dist.barrier(group, async_op=True)
    manager.wait()
