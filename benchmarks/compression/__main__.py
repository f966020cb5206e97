"""How long does the exchange of a model's gradients take between hosts in fewer bytes?

The hosts are emulated (testbed/emulated_hosts.py). hvd_ext's DistributedOptimizer exchanges
a model's gradients as they are, by the table's algorithm and directly, and in each format;
Horovod by default and with its fp16, and Gloo with torch's powerSGD_hook and with the work of
its fp16_compress_hook, alternate with it. Results are checked against the exact mean before
anything is timed, and the bytes that leave a host are read off its interface.

The result has a row of each under "formats" and "peers": `name`; `time_ms` (median, middle half);
`ratio_vs_none` and `ratio_vs_horovod`, how many times as fast; `wire_bytes` that left a host in
an exchange, and `formula_bytes` that had to; `share_of_link`, what these bytes take at its speed,
of the time. `auto_chose` is the format that `auto` took: on one
host, and wherever nothing is faster, none.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.compression import peers
from benchmarks.harness import gradients, shapes
from hvd_ext.cli import above_zero
from hvd_ext.units import parse_bytes
from testbed import ranks, timing
from testbed.emulated_hosts import INTERFACE, emulated_hosts

_FORMATS = ("none", "direct", "bf16", "int8", "powersgd", "auto")
_PEERS = ("horovod", "horovod_fp16", "gloo_fp16", "gloo_powersgd")
_RANK = 4  # of powersgd
# What an exchange may be off by, of the largest gradient of a tensor.
_BOUNDS = {
    **{"bf16": 2**-7, "int8": 2**-5, "auto": 2**-5, "horovod_fp16": 2**-9, "gloo_fp16": 2**-9},
    # Random gradients are of no low rank: what arrives is a part of them.
    **{"powersgd": 2.0, "gloo_powersgd": 2.0},
}
# What a link lets pass at once after a pause (testbed/emulated_hosts.py).
_FREE_BYTES = 256 * 2**10
# How often Horovod's threads wake, by its default; all ranks have one, and hosts share the cores.
_CYCLE_MS = 1.0
_DIRECT = """{"version": 1, "rows": [
  {"nodes": 0, "ranks_per_node": 0, "memory": "host", "choices": [[0, "direct"]]}]}"""


def main(arguments: Sequence[str]) -> int:
    """Build the hosts and launch the ranks, or be one."""
    example = "--hosts 4 --ranks-per-host 1 --gbit 1 --json F"
    parser = harness.parser("compression", __doc__, example, rounds=9)
    harness.add_hosts(parser, least=1)
    parser.add_argument("--model", choices=sorted(shapes.MODELS), default="resnet50")
    parser.add_argument(
        "--cycle-ms",
        type=above_zero,
        default=_CYCLE_MS,
        help=f"HOROVOD_CYCLE_TIME of all contenders ({_CYCLE_MS:g})",
    )
    options = parser.parse_args(arguments)
    if options.worker:
        _work(options)
        return 0
    with emulated_hosts(options.hosts, options.gbit) as hosts:
        result = ranks.launch(
            "benchmarks.compression",
            options.hosts * options.ranks_per_host,
            [f"--gbit={options.gbit}", f"--model={options.model}", f"--rounds={options.rounds}"],
            timeout_s=3600,
            start=hosts.mpirun(options.ranks_per_host),
            variables={**hosts.environment(), "HOROVOD_CYCLE_TIME": f"{options.cycle_ms:g}"},
        )
    result["cycle_ms"] = options.cycle_ms
    _print(result)
    if options.json:
        harness.write_result(options.json, result)
    return 0


def _print(result: dict[str, Any]) -> None:
    columns = ("ms", "middle half", "of none", "of Horovod", "MB from a host", "formula", "of link")
    rows: list[tuple[str, ...]] = []
    for row in (*result["formats"], *result["peers"]):
        if row["name"] == _PEERS[0]:
            rows.append(())
        formula = row["formula_bytes"]
        rows.append(
            (
                row["name"],
                *harness.times(row["time_ms"], 0),
                f"{row['ratio_vs_none']:.2f} x",
                f"{row['ratio_vs_horovod']:.2f} x",
                f"{row['wire_bytes'] / 1e6:.1f}",
                "" if formula is None else f"{formula / 1e6:.1f}",
                f"{row['share_of_link']:.2f}",
            )
        )
    console = harness.print_table(
        f"{result['model']}: {result['message_bytes'] / 1e6:.1f} MB, {result['hosts']} hosts "
        f"x {result['ranks_per_host']} ranks, {result['gbit']:g} Gbit/s",
        ("", *columns),
        rows,
        width=100,
    )
    console.print(f"auto: {result['auto_chose']}; Horovod's cycle: {result['cycle_ms']:g} ms")


def _work(options: argparse.Namespace) -> None:
    # Horovod's own init: hosts that are emulated share their cores.
    import horovod.torch as hvd
    import torch
    from mpi4py import MPI

    torch.set_num_threads(1)
    hvd.init()
    model = shapes.MODELS[options.model]()
    auto = _optimizer(model, "auto")
    auto_chose = auto.explain().partition("compression: ")[2].partition(":")[0]
    low_rank = _optimizer(model, f"powersgd:rank={_RANK}")
    contenders = {
        "none": _hvd_ext(_optimizer(model, "none")),
        "direct": _direct(model),
        **{name: _hvd_ext(_optimizer(model, name)) for name in ("bf16", "int8")},
        "powersgd": _hvd_ext(low_rank),
        "auto": _hvd_ext(auto),
        "horovod": gradients.horovod(model),
        "horovod_fp16": peers.horovod_fp16(model),
        "gloo_fp16": peers.gloo_fp16(model),
        "gloo_powersgd": peers.gloo_powersgd(model, _RANK),
    }
    for name, contender in contenders.items():
        _check(name, contender)
    calls = {name: contender.exchange for name, contender in contenders.items()}
    samples = timing.interleave(calls, options.rounds, gradients.timed, warm_up=1)
    sent = {name: _sent_bytes(exchange) for name, exchange in calls.items()}
    counts = [(math.prod(shape), math.prod(shape[1:]) if len(shape) > 1 else 0) for shape in model]
    # Shards tear matrices: only the layout knows the factors.
    said_bytes = 0  # one host sends nothing
    if hvd.cross_size() > 1:
        said_bytes = MPI.COMM_WORLD.Split(hvd.cross_rank()).allreduce(_said_bytes(low_rank))
    told: list[dict[str, Any]] = [
        {
            "name": name,
            "time_ms": timing.summary([1e3 * s for s in times]),
            "ratio_vs_none": timing.ratio(samples["none"], times),
            "ratio_vs_horovod": timing.ratio(samples["horovod"], times),
            "wire_bytes": sent[name],
            "share_of_link": _share_of_link(name, sent[name], options.gbit, times),
            "formula_bytes": _formula(
                auto_chose if name == "auto" else name, counts, said_bytes, hvd.cross_size()
            ),
        }
        for name, times in samples.items()
    ]
    if hvd.rank() == 0:
        ranks.report(
            {
                "model": options.model,
                "hosts": hvd.cross_size(),
                "ranks_per_host": hvd.local_size(),
                "gbit": options.gbit,
                "message_bytes": 4 * sum(count for count, _ in counts),
                "formats": [row for row in told if row["name"] in _FORMATS],
                "peers": [row for row in told if row["name"] in _PEERS],
                "auto_chose": auto_chose,
                "mpi": MPI.Get_library_version().split(",")[0],
            }
        )
    hvd.shutdown()


def _optimizer(model: Sequence[shapes.Shape], compression: str) -> Any:
    import torch

    import hvd_ext.torch as hvd

    parameters = [torch.nn.Parameter(torch.zeros(shape)) for shape in model]
    optimizer: Any = hvd.DistributedOptimizer(
        torch.optim.SGD(parameters, lr=0.1), compression=compression
    )
    for _ in range(5):  # from here on every .grad lies in the arena, and stays there
        optimizer.synchronize()
    return optimizer


def _hvd_ext(optimizer: Any) -> gradients.Contender:
    parameters = optimizer.param_groups[0]["params"]
    return gradients.Contender([p.grad for p in parameters], optimizer.synchronize)


def _direct(model: Sequence[shapes.Shape]) -> gradients.Contender:
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        file.write(_DIRECT)
        file.flush()
        os.environ["HVD_EXT_TABLE"] = file.name
        try:
            return _hvd_ext(_optimizer(model, "none"))
        finally:
            del os.environ["HVD_EXT_TABLE"]


def _check(name: str, contender: gradients.Contender) -> None:
    """Exchange random gradients; every rank must have the mean, and all the same bits."""
    import torch
    from mpi4py import MPI

    generators = [torch.Generator().manual_seed(rank) for rank in range(MPI.COMM_WORLD.size)]
    means = []
    for tensor in contender.tensors:
        everybodys = [torch.randn(tensor.shape, generator=g) for g in generators]
        tensor.copy_(everybodys[MPI.COMM_WORLD.rank])
        means.append(torch.stack(everybodys).mean(0))
    contender.exchange()
    for index, (tensor, mean) in enumerate(zip(contender.tensors, means, strict=True)):
        off = float((tensor - mean).abs().max() / mean.abs().max())
        if off > _BOUNDS.get(name, 1e-5):
            raise harness.BenchmarkError(f"{name}: tensor {index} is off by {off:.2g}")
        sums = MPI.COMM_WORLD.allgather(float(tensor.double().sum()))
        if len(set(sums)) > 1:
            raise harness.BenchmarkError(f"{name}: ranks differ in tensor {index}")


def _sent_bytes(exchange: Callable[[], None]) -> int:
    """Bytes that leave this host in one exchange, with headers; of two, as powersgd alternates."""
    with _between_barriers():
        before = _left_the_host()
    for _ in range(2):
        exchange()
    with _between_barriers():
        return (_left_the_host() - before) // 2


@contextmanager
def _between_barriers() -> Iterator[None]:
    from mpi4py import MPI

    MPI.COMM_WORLD.Barrier()
    yield
    MPI.COMM_WORLD.Barrier()


def _left_the_host() -> int:
    """Bytes, by the kernel's count for this network namespace."""
    lines = Path("/proc/self/net/dev").read_text().splitlines()
    counts = next(line.split(":")[1].split() for line in lines if INTERFACE in line)
    return int(counts[8])  # after eight that were received


def _share_of_link(name: str, sent: int, gbit: float, times_s: Sequence[float]) -> float:
    link = gbit * 1e9 / 8 * statistics.median(times_s)
    if sent > link + _FREE_BYTES:
        raise harness.BenchmarkError(
            f"{name}: {sent} bytes passed a link of {gbit:g} Gbit/s in the time of {link:.0f}: "
            "it is not held to its speed"
        )
    return sent / link


def _said_bytes(optimizer: Any) -> int:
    """Bytes of this rank's shards between hosts, compressed, as `explain()` reports them."""
    text = optimizer.explain()
    said = re.search(r": (\S+ \S+) for .* of this rank's shards", text)
    if said is None:
        raise harness.BenchmarkError(f"explain() reports no bytes: {text}")
    return parse_bytes(said[1])


def _formula(name: str, counts: list[tuple[int, int]], said_bytes: int, hosts: int) -> float | None:
    """Bytes that a host has to send: 2 (N-1)/N of the gradients in their format.

    For powersgd the optimizer reports them: compared with the interface, that is tested too.
    """
    from hvd_ext.compression.formats import FORMATS, NONE, wire_bytes

    if name not in _FORMATS:
        return None
    low_rank = name == "powersgd"
    wire = said_bytes if low_rank else wire_bytes(FORMATS.get(name, NONE), counts)
    return 2 * (hosts - 1) / hosts * wire


if __name__ == "__main__":
    harness.run(main, "compression")
