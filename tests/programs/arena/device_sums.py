"""Sums in device memory against a reference: exact, and the same bits on all ranks.

Arguments: a dtype; and, for processes that see no GPU but their own, how many there are.
Gradients come late on the GPU though the host is early, so that an event that is not
waited for shows as a wrong sum; and the next round begins while the last one's results
are still read.
"""

from __future__ import annotations

import functools
import os
import sys
import zlib

from mpi4py import MPI

dtype = sys.argv[1]
rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
if len(sys.argv) > 2:
    os.environ["CUDA_VISIBLE_DEVICES"] = str(rank % int(sys.argv[2]))

import torch  # noqa: E402

from hvd_ext.allreduce.table import BUILT_IN, Table  # noqa: E402
from hvd_ext.arena.config import ArenaConfig  # noqa: E402
from hvd_ext.arena.cuda.arena import DeviceArena, carried_by  # noqa: E402
from hvd_ext.arena.layout import ParameterSpec, layout_by_size  # noqa: E402
from hvd_ext.job.progress_thread import ProgressThread  # noqa: E402
from hvd_ext.job.topology import discover  # noqa: E402

COUNTS = [0, 1, 2, 7, 8, 31, 32, 33, 4095, 4097, 100_003, 3_000_000]
ROUNDS = 6
LATE_CYCLES = 40_000_000  # some 20 ms
DEVICE = rank % torch.cuda.device_count()


def values(count: int, of_rank: int, number: int) -> torch.Tensor:
    """Whole numbers that any order sums exactly, or, in odd rounds, of many magnitudes."""
    if number % 2 == 0:
        return (torch.arange(count) % 5 + of_rank + number).to(getattr(torch, dtype))
    generator = torch.Generator().manual_seed(1000 * of_rank + number)
    made = torch.randn(count, generator=generator)
    made *= torch.pow(10.0, torch.randint(-4, 3, (count,), generator=generator).float())
    made[::7] *= 1e-39  # subnormal, where a kernel may be built to make them zero
    return made.to(getattr(torch, dtype))


def expected(count: int, number: int, scale: float) -> torch.Tensor:
    """Summed in rank order in 32 bits, and rounded once."""
    total = values(count, 0, number).float()
    for other in range(1, size):
        total = total + values(count, other, number).float()
    return (total * torch.tensor(scale)).to(getattr(torch, dtype))


def run(
    topology, bucket_bytes: int, scale: float, stream: torch.cuda.Stream, table: Table = BUILT_IN
) -> None:
    specs = [ParameterSpec(str(count), (count,), (1,), dtype) for count in COUNTS]
    plan = layout_by_size(specs, bucket_bytes)
    arena = DeviceArena(
        ArenaConfig(topology, table, 30),
        plan,
        scale,
        DEVICE,
        lambda: torch.cuda.current_stream(DEVICE).cuda_stream,
    )
    memory = torch.from_dlpack(arena.data)
    assert memory.device == torch.device("cuda", DEVICE)
    assert not memory.any()
    item = torch.empty(0, dtype=getattr(torch, dtype)).element_size()
    views = {
        slot.parameter: memory[slot.offset_bytes : slot.offset_bytes + slot.count * item].view(
            getattr(torch, dtype)
        )
        for bucket in plan.buckets
        for slot in bucket.spans
    }
    inputs = [
        {i: values(COUNTS[i], rank, number).cuda(DEVICE) for i in views} for number in range(ROUNDS)
    ]
    results = []
    progress = ProgressThread()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        for number in range(ROUNDS):
            if number % size == rank:
                torch.cuda._sleep(LATE_CYCLES)
            for index, bucket in enumerate(plan.buckets):
                for slot in bucket.spans:
                    views[slot.parameter].copy_(inputs[number][slot.parameter])
                if number < 4:  # as in training
                    arena.ready(index)
                    done = progress.submit(functools.partial(arena.reduce, index))
            if number < 4:
                done.result()
            else:
                for index in range(len(plan.buckets)):
                    arena.reduce(index)
            arena.finish()
            # Read where the optimizer would, and slowly on one rank.
            if number % size == size - 1 - rank:
                torch.cuda._sleep(LATE_CYCLES)
            results.append(({i: view.clone() for i, view in views.items()}, memory.clone()))
    torch.cuda.synchronize()
    for number, (sums, everything) in enumerate(results):
        for index, got in sums.items():
            wanted = expected(COUNTS[index], number, scale)
            assert torch.equal(got.cpu(), wanted), (number, COUNTS[index], dtype)
        digest = zlib.crc32(everything.cpu().numpy().tobytes())
        digests = topology.world.allgather(digest)
        assert len(set(digests)) == 1, "ranks hold different bits"
    progress.close()
    arena.close()


def main() -> None:
    torch.cuda.set_device(DEVICE)
    topology = discover(MPI.COMM_WORLD, 60)
    run(topology, 1, 1.0, torch.cuda.current_stream())
    run(topology, 1 << 20, 1 / size, torch.cuda.Stream())
    if size > 2:
        run(topology, 1 << 20, 1 / size, torch.cuda.Stream(), carried_by("ipc_pairwise"))
    print(f"ok {rank}", flush=True)


main()
