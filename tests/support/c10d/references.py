"""Data of each rank for collectives, and what plain tensors make of all ranks' data."""

from __future__ import annotations

import functools

import torch
import torch.distributed as dist

OPERATIONS = {
    dist.ReduceOp.SUM: torch.add,
    dist.ReduceOp.MIN: torch.minimum,
    dist.ReduceOp.MAX: torch.maximum,
    dist.ReduceOp.PRODUCT: torch.mul,
    dist.ReduceOp.BAND: torch.bitwise_and,
    dist.ReduceOp.BOR: torch.bitwise_or,
    dist.ReduceOp.BXOR: torch.bitwise_xor,
}
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
OTHERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
# No element, one, a cache line and around it.
LENGTHS = (0, 1, 16, 17, 1000)
# Several pieces of the window.
LONG = 600_001


def data(rank: int, seed: int, dtype: torch.dtype, *shape: int, op: object = None) -> torch.Tensor:
    """The data of a rank: small integers, which every dtype and order of a sum holds exactly.

    For an average they are multiples of 12, so that it is an integer too on up to 4 ranks.
    """
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    factor = 12 if op == dist.ReduceOp.AVG else 1
    return (factor * torch.randint(0, 3, shape, generator=generator)).to(dtype)


def reduced(size: int, seed: int, dtype: torch.dtype, op: object, *shape: int) -> torch.Tensor:
    """All ranks' data, reduced."""
    rows = [data(rank, seed, dtype, *shape, op=op) for rank in range(size)]
    if op == dist.ReduceOp.AVG:
        return (sum(row.double() for row in rows) / size).to(dtype)
    return functools.reduce(OPERATIONS[op], rows)


def operations(dtype: torch.dtype) -> list[object]:
    """The reductions that a dtype has."""
    bitwise = {dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR}
    if dtype in FLOATS:
        return [*(op for op in OPERATIONS if op not in bitwise), dist.ReduceOp.AVG]
    return list(OPERATIONS)
