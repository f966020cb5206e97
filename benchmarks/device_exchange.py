"""How long does the exchange of gradients on GPUs take? hvd_ext's carriers, and their peers.

All exchange the same tensors in device memory in one run, interleaved, and their results
are checked before anything is timed: hvd_ext's device arena as DistributedOptimizer calls it, by
each carrier (CUDA IPC; with more than two processes on a node also pairwise, one peer at a time;
NCCL; with --nodes, between pretended nodes, pinned memory);
Horovod as it was built here, with its defaults; Gloo (torch.distributed) and
the MPI library's own allreduce, both through pinned host memory, flattened into buckets
of 25 MiB and into one buffer. Peers that cannot run are left out, and the JSON says why.

The limit: a rank reads and writes as many bytes as its gradients have. A copy within
device memory does just that, by as many processes at once. Processes that share a GPU
take turns on it, and cross no link. NCCL's kernels wait for each other while they run: without MPS
the comparison is unfair to NCCL.

Results: docs/reference/gpu.md.
"""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from benchmarks import harness
from benchmarks.harness import gradients, shapes
from hvd_ext.cli import at_least
from testbed import ranks, timing

_PEERS = ("nccl", "horovod", "gloo", "mpi")
_GLOO_BUCKET_BYTES = 25 * 2**20
# Besides the model's gradients: single tensors, whose time is mostly latency.
_SHORT: dict[str, list[shapes.Shape]] = {"1 MiB": [(1 << 18,)], "4 KiB": [(1 << 10,)]}
_TIMEOUT_S = 60.0


def main(arguments: Sequence[str]) -> int:
    """Launch the ranks, or be one."""
    parser = harness.parser("device_exchange", __doc__, "--model resnet50 --json F", rounds=30)
    parser.add_argument(
        "--np", type=at_least(1), default=2, help="processes on this machine's GPUs (2)"
    )
    parser.add_argument(
        "--nodes", type=at_least(1), default=1, help="nodes that the processes pretend to be on (1)"
    )
    parser.add_argument("--model", choices=sorted(shapes.MODELS), default="resnet50")
    options = parser.parse_args(arguments)
    if options.np % options.nodes:
        parser.error(f"--nodes {options.nodes}: --np {options.np} must be a multiple of it")
    if options.worker:
        _work(options.model, options.nodes, options.rounds)
        return 0
    given = {"--model": options.model, "--nodes": options.nodes, "--rounds": options.rounds}
    result = ranks.launch(
        "benchmarks.device_exchange",
        options.np,
        [str(word) for pair in given.items() for word in pair],
        # Needs no Horovod, as the benchmark does not.
        start=ranks.hvd_launch(options.np),
        timeout_s=240,
    )
    for case in result["cases"]:
        _print(result, case)
    if options.json:
        harness.write_result(options.json, result)
    return 0


def _print(result: Mapping[str, Any], case: Mapping[str, Any]) -> None:
    rows = []
    for name, time_ms in case["time_ms"].items():
        title = "a copy (reference)" if name == "copy" else name
        title += " (chosen)" * (name == case["chosen"])
        rows.append((title, *harness.times(time_ms, 3)))
    console = harness.print_table(
        f"{case['what']}: {case['message_bytes'] / 1e6:.3f} MB, {case['ranks']} processes on "
        f"{case['nodes']} nodes, {result['gpus']} x {result['gpu']}",
        ("exchange", "median ms", "middle half ms"),
        rows,
    )
    for name, reason in result["left_out"].items():
        console.print(f"left out: {name}: {reason}", markup=False)
    to_nccl = case["ratio_vs_nccl"]
    console.print(
        f"{case['chosen']} is faster than the best peer by {case['ratio_vs_best_peer']:.2f} x"
        + (f", than NCCL by {to_nccl:.2f} x" if to_nccl else "")
        + f"; share of copy bandwidth: {case['share_of_copy_bandwidth']:.2f}"
    )


def summarize(
    samples: Mapping[str, Sequence[float]], chosen: str, size: int, nodes: int, message_bytes: int
) -> dict[str, Any]:
    """A case of the JSON, from samples in s by contender, "copy" among them."""
    peers = {name: times for name, times in samples.items() if name in _PEERS and name != chosen}
    ratios = {name: timing.ratio(times, samples[chosen]) for name, times in peers.items()}
    return {
        "nodes": nodes,
        "ranks": size,
        "message_bytes": message_bytes,
        "time_ms": {n: timing.summary([1e3 * t for t in times]) for n, times in samples.items()},
        "chosen": chosen,
        "ratio_vs_nccl": timing.ratio(samples["nccl"], samples[chosen])
        if "nccl" in samples
        else None,
        "ratio_vs_best_peer": min(ratios.values()),
        "share_of_copy_bandwidth": timing.ratio(samples["copy"], samples[chosen]),
    }


def _work(model: str, nodes: int, rounds: int) -> None:
    import torch

    torch.set_num_threads(1)
    has_horovod, left_out = _horovod()
    from mpi4py import MPI

    from hvd_ext.allreduce.table import BUILT_IN
    from hvd_ext.arena.config import ArenaConfig
    from hvd_ext.arena.cuda import carriers, nccl
    from hvd_ext.arena.cuda.arena import carried_by
    from hvd_ext.arena.cuda.self_check import prove

    rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
    shares = size > torch.cuda.device_count()
    if shares:  # else NCCL refuses ranks that share a GPU; with fewer blocks, more ranks fit
        os.environ.setdefault("NCCL_MULTI_RANK_GPU_ENABLE", "1")
        if size > 2:
            os.environ.setdefault("NCCL_MAX_CTAS", "8")
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    topology = _topology(nodes)

    def stream() -> int:
        return int(torch.cuda.current_stream(device).cuda_stream)

    start_s = time.perf_counter()
    given = ArenaConfig(topology, BUILT_IN, _TIMEOUT_S), device.index, stream
    prove(*given)
    self_check_s = time.perf_counter() - start_s
    table = carriers.prepare(*given).table
    if reason := nccl.refusal(topology, device.index):
        left_out["nccl"] = reason
    _start_gloo()
    cases = []
    for what, of_case in {model: shapes.MODELS[model](), **_SHORT}.items():
        arena = partial(_arena, of_case, device, topology, stream)
        chosen, ours = arena(table)
        compared = {chosen: ours}
        for name in carriers.candidates(topology, device.index, _TIMEOUT_S):
            found, contender = arena(carried_by(name))
            compared[found] = contender
        compared["gloo"] = _gloo(of_case, device)
        compared["mpi"] = _mpi(of_case, device)
        if has_horovod and "horovod" not in left_out:
            compared["horovod"] = _with_horovod(of_case, device, what)
            if problem := _problem(compared["horovod"]):
                del compared["horovod"]
                left_out["horovod"] = problem
        cases.append({"what": what, **_measure(compared, chosen, device, nodes, rounds)})
    if rank == 0:
        ranks.report(
            {
                "cases": cases,
                "size": size,
                "gpu": torch.cuda.get_device_name(device),
                "gpus": torch.cuda.device_count(),
                "shares_gpu": shares,
                "mps": "CUDA_MPS_PIPE_DIRECTORY" in os.environ,
                "self_check_s": self_check_s,
                "left_out": left_out,
                "mpi": MPI.Get_library_version().split(",")[0],
                "torch": torch.__version__,
                "cuda": torch.version.cuda,
            }
        )
    MPI.COMM_WORLD.Barrier()


def _measure(
    compared: dict[str, gradients.Contender], chosen: str, device: Any, nodes: int, rounds: int
) -> dict[str, Any]:
    """Check and time all contenders of a case."""
    import torch
    from mpi4py import MPI

    for name, contender in compared.items():
        gradients.check(name, contender)
    message_bytes = sum(4 * t.numel() for t in compared[chosen].tensors)
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
    return summarize(samples, chosen, MPI.COMM_WORLD.size, nodes, message_bytes)


def _topology(nodes: int) -> Any:
    """Find this machine's ranks, or divide them into pretended nodes."""
    from mpi4py import MPI

    from hvd_ext.job.topology import Topology, discover

    world = MPI.COMM_WORLD
    if nodes == 1:
        return discover(world, _TIMEOUT_S)
    ranks_per_node = world.size // nodes
    node = world.Split(world.rank // ranks_per_node, world.rank)
    cross = world.Split(world.rank % ranks_per_node, world.rank)
    hosts = tuple(f"node{rank // ranks_per_node}" for rank in range(world.size))
    return Topology(world.Dup(), node, cross, hosts, homogeneous=True)


def _problem(contender: gradients.Contender) -> str:
    """Why a peer cannot run, the same on every rank; or nothing. Collective."""
    from mpi4py import MPI

    problem = ""
    try:
        contender.exchange()
    except Exception as error:  # built without the GPU: it says so in its own way
        problem = f"{type(error).__name__}: {error}".splitlines()[0]
    return next(filter(None, MPI.COMM_WORLD.allgather(problem)), "")


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


def _arena(
    model_shapes: Sequence[shapes.Shape],
    device: Any,
    topology: Any,
    stream: Callable[[], int],
    table: Any,
) -> tuple[str, gradients.Contender]:
    """The device arena, with every gradient a view of it; and what carries its longest bucket."""
    import torch
    from torch.utils.dlpack import from_dlpack

    from hvd_ext.arena.config import ArenaConfig
    from hvd_ext.arena.cuda.arena import BUCKET_BYTES, DeviceArena
    from hvd_ext.arena.layout import ParameterSpec, layout_by_size

    specs = [
        ParameterSpec(str(index), (math.prod(shape),), (1,), "float32")
        for index, shape in enumerate(model_shapes)
    ]
    plan = layout_by_size(specs, BUCKET_BYTES)
    scale = 1 / topology.world.size
    config = ArenaConfig(topology, table, _TIMEOUT_S)
    arena = DeviceArena(config, plan, scale, device.index, stream)
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

    longest = max(range(len(plan.buckets)), key=lambda i: plan.buckets[i].message_bytes)
    return arena.carriers[longest], gradients.Contender(tensors, exchange)


def _with_horovod(
    model_shapes: Sequence[shapes.Shape], device: Any, what: str
) -> gradients.Contender:
    """Horovod with its defaults: all tensors are submitted, then waited for."""
    import horovod.torch as hvd

    tensors = _zeros(model_shapes, device)

    def exchange() -> None:
        handles = [
            hvd.allreduce_async_(t, name=f"{what}.{i}", op=hvd.Average)
            for i, t in enumerate(tensors)
        ]
        for handle in handles:
            hvd.synchronize(handle)

    return gradients.Contender(tensors, exchange)


def _start_gloo() -> None:
    import torch
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    folder = comm.bcast(tempfile.mkdtemp() if comm.rank == 0 else None)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=comm.rank, world_size=comm.size
    )


def _gloo(model_shapes: Sequence[shapes.Shape], device: Any) -> gradients.Contender:
    """Gloo through pinned memory: each bucket goes as soon as the host has it."""
    import torch
    from mpi4py import MPI

    tensors, size = _zeros(model_shapes, device), MPI.COMM_WORLD.size
    groups: list[list[Any]] = [[]]
    for tensor in reversed(tensors):
        if sum(4 * t.numel() for t in groups[-1]) + 4 * tensor.numel() > _GLOO_BUCKET_BYTES:
            groups.append([])
        groups[-1].append(tensor)
    staged = [_Staged(group, size) for group in groups if group]

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
