"""How long does the exchange of a model's gradients take between hosts with slow links?

The hosts are emulated (testbed/emulated_hosts.py). Horovod with its defaults, the MPI
library's own allreduce of one buffer, and hvd_ext's DistributedOptimizer exchange
ResNet-50's gradients, interleaved; their results are checked before anything is timed. So
are short messages, by a planned call against the MPI library's own.

The limit: of n bytes on each of N hosts, every host has to send 2 (N-1)/N n through its
link, whatever the algorithm (Patarasuk and Yuan, JPDC 69, 2009). It is taken with the
link's speed as configured, headers included, and as measured: every host sends a plain
TCP stream to the next one at once.
"""

from __future__ import annotations

import argparse
import socket
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks import harness
from benchmarks.harness import gradients, shapes
from testbed import ranks, timing
from testbed.emulated_hosts import emulated_hosts

_SHORT_BYTES = [2**exponent for exponent in range(10, 17)]
# A short message is timed by the dozen: a barrier's ranks part at times that differ by
# more than one takes.
_CALLS = 24
_STREAM_BYTES, _STREAMS = 64 * 10**6, 3
_PORT = 20077


def main(arguments: Sequence[str]) -> int:
    """Build the hosts and launch the ranks, or be one."""
    parser = harness.parser("cluster_exchange", __doc__, "--hosts 4 --gbit 2 --json F", rounds=10)
    harness.add_hosts(parser)
    parser.add_argument("--model", choices=sorted(shapes.MODELS), default="resnet50")
    parser.add_argument("--addresses", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker:
        _work(options.addresses.split(","), options)
        return 0
    with emulated_hosts(options.hosts, options.gbit) as hosts:
        words = [f"--gbit={options.gbit}", f"--model={options.model}", f"--rounds={options.rounds}"]
        result = ranks.launch(
            "benchmarks.cluster_exchange",
            options.hosts * options.ranks_per_host,
            [f"--addresses={','.join(hosts.addresses)}", *words],
            start=hosts.mpirun(options.ranks_per_host),
            variables=hosts.environment(),
        )
    _print(result)
    if options.json:
        harness.write_result(options.json, result)
    return 0


def _print(result: dict[str, Any]) -> None:
    rows: list[tuple[str, ...]] = []
    for name, time_ms in result["time_ms"].items():
        of_limit = f"{result['wire_limit_ms'] / time_ms['median']:.2f}"
        ratio = "" if name == "hvd_ext" else f"{result[f'ratio_vs_{name}']:.2f} x as fast"
        rows.append((name, *harness.times(time_ms, 0), of_limit, ratio))
    rows.append(())
    for row in result["short_messages"]:
        hvd_ext_us, mpi_us = row["hvd_ext_us"]["median"], row["mpi_us"]["median"]
        times = (f"{hvd_ext_us / 1e3:.3f}", f"MPI {mpi_us / 1e3:.3f}")
        ratio = f"{row['ratio_vs_mpi']:.2f} x as fast"
        rows.append((f"{row['message_bytes'] // 1024} KiB", *times, "", ratio))
    console = harness.print_table(
        f"{result['model']}: {result['message_bytes'] / 1e6:.1f} MB, {result['hosts']} hosts "
        f"x {result['ranks_per_host']} ranks, {result['gbit']:g} Gbit/s",
        ("exchange", "median ms", "middle half ms", "of the wire limit", "hvd_ext is"),
        rows,
    )
    console.print(
        f"wire limit {result['wire_limit_ms']:.0f} ms; plain streams reach "
        f"{result['measured_gbit']:.2f} Gbit/s, and hvd_ext "
        f"{result['share_of_measured_wire_limit']:.2f} of the limit that follows from that",
        soft_wrap=True,
    )


def _work(addresses: Sequence[str], options: argparse.Namespace) -> None:
    # Horovod's own init: hosts that are emulated share their cores, and its background
    # thread must keep its priority there.
    import horovod.torch as hvd
    import torch
    from mpi4py import MPI

    torch.set_num_threads(1)
    hvd.init()
    if hvd.cross_size() != len(addresses):
        raise harness.BenchmarkError(
            f"MPI sees {hvd.cross_size()} hosts, there are {len(addresses)}"
        )
    measured_gbit = _stream(addresses, hvd.cross_rank(), hvd.local_rank())
    model_shapes = shapes.MODELS[options.model]()
    compared = {
        "horovod": gradients.horovod(model_shapes),
        "mpi": gradients.flat(model_shapes),
        "hvd_ext": gradients.hvd_ext(model_shapes),
    }
    samples = _interleaved(compared, options.rounds, 1)
    message_bytes = sum(4 * t.numel() for t in compared["mpi"].tensors)
    sent_bits = 8 * message_bytes * 2 * (len(addresses) - 1) / len(addresses)
    limit_s = sent_bits / (options.gbit * 1e9)
    share = limit_s / statistics.median(samples["hvd_ext"])
    short = [_short(message_bytes, 4 * options.rounds) for message_bytes in _SHORT_BYTES]
    if hvd.rank() == 0:
        ranks.report(
            {
                "model": options.model,
                "hosts": len(addresses),
                "ranks_per_host": hvd.local_size(),
                "message_bytes": message_bytes,
                "gbit": options.gbit,
                "measured_gbit": measured_gbit,
                "wire_limit_ms": 1e3 * limit_s,
                "time_ms": {name: _summary(times, 1e3) for name, times in samples.items()},
                "ratio_vs_horovod": timing.ratio(samples["horovod"], samples["hvd_ext"]),
                "ratio_vs_mpi": timing.ratio(samples["mpi"], samples["hvd_ext"]),
                "share_of_wire_limit": share,
                "share_of_measured_wire_limit": share * options.gbit / measured_gbit,
                "short_messages": short,
                "mpi": MPI.Get_library_version().split(",")[0],
            }
        )
    hvd.shutdown()


def _short(message_bytes: int, rounds: int) -> dict[str, Any]:
    count = message_bytes // 4
    compared = {"mpi": gradients.flat([(count,)]), "hvd_ext": gradients.planned(count)}
    samples = _interleaved(compared, rounds, _CALLS)
    return {
        "message_bytes": message_bytes,
        **{f"{name}_us": _summary(times, 1e6) for name, times in samples.items()},
        "ratio_vs_mpi": timing.ratio(samples["mpi"], samples["hvd_ext"]),
    }


def _interleaved(
    compared: dict[str, gradients.Contender], rounds: int, calls: int
) -> dict[str, list[float]]:
    """Seconds of one exchange, interleaved, once every result was found right."""
    for name, contender in compared.items():
        gradients.check(name, contender)

    def repeated(exchange: Callable[[], None]) -> Callable[[], None]:
        def run_all() -> None:
            for _ in range(calls):
                exchange()

        return run_all

    contenders = {name: repeated(contender.exchange) for name, contender in compared.items()}
    samples = timing.interleave(contenders, rounds, gradients.timed, warm_up=2)
    return {name: [time_s / calls for time_s in times] for name, times in samples.items()}


def _summary(times_s: Sequence[float], units_per_s: float) -> dict[str, float]:
    return timing.summary([units_per_s * time_s for time_s in times_s])


def _stream(addresses: Sequence[str], host: int, local_rank: int) -> float:
    """Gbit/s of payload when every host streams to the next at once; collective."""
    from mpi4py import MPI

    listener = socket.create_server(("", _PORT)) if local_rank == 0 else None
    speeds = []
    for _ in range(_STREAMS):
        MPI.COMM_WORLD.Barrier()
        time_s = 0.0
        if listener is not None:
            time_s = _send_and_receive(listener, addresses[(host + 1) % len(addresses)])
        speeds.append(8 * _STREAM_BYTES / MPI.COMM_WORLD.allreduce(time_s, op=MPI.MAX) / 1e9)
    if listener is not None:
        listener.close()
    return statistics.median(speeds)


def _send_and_receive(listener: socket.socket, to: str) -> float:
    into = bytearray(1 << 20)
    start = time.perf_counter()
    outgoing = socket.create_connection((to, _PORT))
    incoming, _ = listener.accept()
    with outgoing, incoming:
        sender = threading.Thread(target=outgoing.sendall, args=(bytes(_STREAM_BYTES),))
        sender.start()
        left = _STREAM_BYTES
        while left:
            left -= incoming.recv_into(into, min(left, len(into)))
        sender.join()
    return time.perf_counter() - start


if __name__ == "__main__":
    harness.run(main, "cluster_exchange")
