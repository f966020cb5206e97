"""How long does the exchange of gradients on GPUs take? hvd_ext over CUDA IPC, and its peers.

All exchange the same tensors in device memory in one run, interleaved, and their results
are checked before anything is timed: hvd_ext's device arena as DistributedOptimizer
calls it; Horovod as it was built here, with its defaults; Gloo (torch.distributed) and
the MPI library's own allreduce, both through pinned host memory, flattened into buckets
of 25 MiB and into one buffer. Peers that cannot run are left out, and the JSON says why.

The limit: a rank reads and writes as many bytes as its gradients have. A copy within
device memory does just that, by as many processes at once. Processes that share a GPU
take turns on it, and cross no link.

Results: docs/reference/gpu.md.
"""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks import harness
from benchmarks.harness import gradients, shapes
from hvd_ext.cli import at_least
from testbed import ranks, timing

_PEERS = ("horovod", "gloo", "mpi")
_GLOO_BUCKET_BYTES = 25 * 2**20


def main(arguments: Sequence[str]) -> int:
    """Launch the ranks, or be one."""
    parser = harness.parser("device_exchange", __doc__, "--model resnet50 --json F", rounds=30)
    parser.add_argument(
        "--np", type=at_least(1), default=2, help="processes on this machine's GPUs (2)"
    )
    parser.add_argument("--model", choices=sorted(shapes.MODELS), default="resnet50")
    options = parser.parse_args(arguments)
    if options.worker:
        _work(options.model, options.rounds)
        return 0
    result = ranks.launch(
        "benchmarks.device_exchange",
        options.np,
        ["--model", options.model, "--rounds", str(options.rounds)],
        # Needs no Horovod, as the benchmark does not.
        start=ranks.hvd_launch(options.np),
        timeout_s=120,
    )
    _print(result)
    if options.json:
        harness.write_result(options.json, result)
    return 0


def _print(result: dict[str, Any]) -> None:
    rows = []
    for name, time_ms in result["time_ms"].items():
        title = "a copy (reference)" if name == "copy" else name
        factor = result.get(f"ratio_vs_{name}")
        cells = harness.times(time_ms, 3)
        rows.append((title, *cells, f"{factor:.2f} x" if factor else ""))
    console = harness.print_table(
        f"{result['model']}: {result['tensors']} gradients, "
        f"{result['message_bytes'] / 1e6:.1f} MB, {result['size']} processes on "
        f"{result['gpus']} x {result['gpu']}",
        ("exchange", "median ms", "middle half ms", "hvd_ext is faster by"),
        rows,
    )
    for name, reason in result["left_out"].items():
        console.print(f"left out: {name}: {reason}", markup=False)
    console.print(
        f"ratio to the best peer: {result['ratio_vs_best_peer']:.2f} x; "
        f"share of copy bandwidth: {result['share_of_copy_bandwidth']:.2f}; "
        f"a copy moves {result['copy_gb_s']:.0f} GB/s of one process, read and written"
    )


def _work(model: str, rounds: int) -> None:
    import torch

    torch.set_num_threads(1)
    has_horovod, left_out = _horovod()
    from mpi4py import MPI

    rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    model_shapes = shapes.MODELS[model]()
    compared = {
        "hvd_ext": _hvd_ext(model_shapes, device),
        "gloo": _gloo(model_shapes, device),
        "mpi": _mpi(model_shapes, device),
    }
    if has_horovod:
        problem = ""
        try:
            compared["horovod"] = _with_horovod(model_shapes, device)
            compared["horovod"].exchange()
        except Exception as error:  # built without the GPU: it says so in its own way
            problem = f"{type(error).__name__}: {error}".splitlines()[0]
        problem = next(filter(None, MPI.COMM_WORLD.allgather(problem)), "")
        if problem:
            del compared["horovod"]
            left_out["horovod"] = problem
    for name, contender in compared.items():
        gradients.check(name, contender)
    message_bytes = sum(4 * t.numel() for t in compared["hvd_ext"].tensors)
    source = torch.ones(message_bytes // 4, device=device)
    target = torch.zeros_like(source)

    def copy() -> None:
        target.copy_(source)

    contenders: dict[str, Callable[[], None]] = {
        name: contender.exchange for name, contender in compared.items()
    }
    contenders["copy"] = copy

    def timed(exchange: Callable[[], None]) -> float:
        torch.cuda.synchronize()
        MPI.COMM_WORLD.Barrier()
        start_s = time.perf_counter()
        exchange()
        torch.cuda.synchronize()
        return float(MPI.COMM_WORLD.allreduce(time.perf_counter() - start_s, op=MPI.MAX))

    samples = timing.interleave(contenders, rounds, timed)
    ratios = {
        f"ratio_vs_{name}": timing.ratio(samples[name], samples["hvd_ext"])
        for name in _PEERS
        if name in samples
    }
    time_ms = {name: timing.summary([1e3 * t for t in times]) for name, times in samples.items()}
    if rank == 0:
        ranks.report(
            {
                "model": model,
                "size": size,
                "gpu": torch.cuda.get_device_name(device),
                "gpus": torch.cuda.device_count(),
                "tensors": len(model_shapes),
                "message_bytes": message_bytes,
                "time_ms": time_ms,
                **ratios,
                "ratio_vs_best_peer": min(ratios.values()),
                "share_of_copy_bandwidth": timing.ratio(samples["copy"], samples["hvd_ext"]),
                "copy_gb_s": 2 * message_bytes / time_ms["copy"]["median"] / 1e6,
                "left_out": left_out,
                "mpi": MPI.Get_library_version().split(",")[0],
                "torch": torch.__version__,
                "cuda": torch.version.cuda,
            }
        )
    MPI.COMM_WORLD.Barrier()


def _horovod() -> tuple[bool, dict[str, str]]:
    """Start Horovod, which starts MPI, if it is there; and what is left out if not."""
    try:
        import horovod.torch as hvd
    except ImportError as error:
        return False, {"horovod": f"{type(error).__name__}: {error}".splitlines()[0]}
    hvd.init()
    return True, {}


def _zeros(model_shapes: Sequence[shapes.Shape], device: Any) -> list[Any]:
    import torch

    return [torch.zeros(shape, device=device) for shape in model_shapes]


def _hvd_ext(model_shapes: Sequence[shapes.Shape], device: Any) -> gradients.Contender:
    """The device arena, with every gradient a view of it."""
    import torch
    from mpi4py import MPI
    from torch.utils.dlpack import from_dlpack

    from hvd_ext.arena.cuda.arena import BUCKET_BYTES, DeviceArena
    from hvd_ext.arena.layout import ParameterSpec, layout_by_size
    from hvd_ext.job.topology import discover

    specs = [
        ParameterSpec(str(index), (math.prod(shape),), (1,), "float32")
        for index, shape in enumerate(model_shapes)
    ]
    plan = layout_by_size(specs, BUCKET_BYTES)
    arena = DeviceArena(
        discover(MPI.COMM_WORLD, 60),
        plan,
        1 / MPI.COMM_WORLD.size,
        60,
        device.index,
        lambda: int(torch.cuda.current_stream(device).cuda_stream),
    )
    memory = from_dlpack(arena.data)
    views = {
        slot.parameter: memory[slot.offset_bytes : slot.offset_bytes + 4 * slot.count]
        for bucket in plan.buckets
        for slot in bucket.spans
    }
    tensors = [
        views[index].view(torch.float32).view(shape) for index, shape in enumerate(model_shapes)
    ]

    def exchange() -> None:
        arena.ready(len(plan.buckets) - 1)
        for index in range(len(plan.buckets)):
            arena.reduce(index)
        arena.finish()

    return gradients.Contender(tensors, exchange)


def _with_horovod(model_shapes: Sequence[shapes.Shape], device: Any) -> gradients.Contender:
    """Horovod with its defaults: all tensors are submitted, then waited for."""
    import horovod.torch as hvd

    tensors = _zeros(model_shapes, device)

    def exchange() -> None:
        handles = [
            hvd.allreduce_async_(t, name=f"t{i}", op=hvd.Average) for i, t in enumerate(tensors)
        ]
        for handle in handles:
            hvd.synchronize(handle)

    return gradients.Contender(tensors, exchange)


def _gloo(model_shapes: Sequence[shapes.Shape], device: Any) -> gradients.Contender:
    """Gloo through pinned memory: each bucket goes as soon as the host has it."""
    import torch
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    folder = comm.bcast(tempfile.mkdtemp() if comm.rank == 0 else None)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=comm.rank, world_size=comm.size
    )
    tensors = _zeros(model_shapes, device)
    groups: list[list[Any]] = [[]]
    for tensor in reversed(tensors):
        if sum(4 * t.numel() for t in groups[-1]) + 4 * tensor.numel() > _GLOO_BUCKET_BYTES:
            groups.append([])
        groups[-1].append(tensor)
    staged = [_Staged(group, comm.size) for group in groups if group]

    def exchange() -> None:
        for bucket in staged:
            bucket.to_host()
        pending = []
        for bucket in staged:
            bucket.on_host.synchronize()
            pending.append(torch.distributed.all_reduce(bucket.host, async_op=True))
        for work, bucket in zip(pending, staged, strict=True):
            work.wait()
            bucket.to_device()

    return gradients.Contender(tensors, exchange)


def _mpi(model_shapes: Sequence[shapes.Shape], device: Any) -> gradients.Contender:
    """The MPI library's own allreduce of all gradients in one pinned buffer."""
    from mpi4py import MPI

    tensors = _zeros(model_shapes, device)
    staged = _Staged(tensors, MPI.COMM_WORLD.size)
    array = staged.host.numpy()

    def exchange() -> None:
        staged.to_host()
        staged.on_host.synchronize()
        MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, array)
        staged.to_device()

    return gradients.Contender(tensors, exchange)


class _Staged:
    """Tensors on a GPU that pass through one flat buffer there, and one pinned on the host."""

    def __init__(self, tensors: list[Any], size: int) -> None:
        import torch

        self._tensors, self._size = tensors, size
        self._counts = [t.numel() for t in tensors]
        self._flat = torch.empty(sum(self._counts), device=tensors[0].device)
        self.host = torch.empty(sum(self._counts), pin_memory=True)
        self.on_host = torch.cuda.Event()

    def to_host(self) -> None:
        import torch

        torch.cat([t.view(-1) for t in self._tensors], out=self._flat)
        self.host.copy_(self._flat, non_blocking=True)
        self.on_host.record()

    def to_device(self) -> None:
        self._flat.copy_(self.host, non_blocking=True)
        self._flat.div_(self._size)
        for tensor, part in zip(self._tensors, self._flat.split(self._counts), strict=True):
            tensor.view(-1).copy_(part)


if __name__ == "__main__":
    harness.run(main, "device_exchange")
