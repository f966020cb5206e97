"""How long does the exchange of a model's gradients take? Horovod, Gloo, hvd_ext.

All three exchange the same tensors in one run, interleaved, and their results are
checked before anything is timed. Horovod reduces the tensors asynchronously with its
defaults (fused up to 128 MiB); Gloo is torch.distributed with 25 MiB buckets, copies
in and out included; hvd_ext is DistributedOptimizer.synchronize() with the gradients
where it keeps them.

hvd_ext has Horovod's background thread scheduled as idle, where ranks have a core
each. It has that here for hvd_ext and for the copy, and the usual one for Horovod and
Gloo, if this user may change it so; the JSON says which.

The limit: a rank has to read and write every byte of its gradients once. A copy of
as many bytes does just that, by as many processes at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from benchmarks import harness
from benchmarks.harness import gloo, gradients, shapes
from hvd_ext.cli import at_least
from testbed import ranks, timing

_BUCKET_BYTES = 25 * 2**20


def main(arguments: Sequence[str]) -> int:
    """Launch the ranks, or be one."""
    parser = harness.parser("gradient_exchange", __doc__, "--model resnet50 --json F", rounds=30)
    parser.add_argument("--np", type=at_least(1), default=2, help="ranks (2)")
    parser.add_argument("--model", choices=sorted(shapes.MODELS), default="resnet50")
    options = parser.parse_args(arguments)
    if options.worker:
        _work(options.model, options.rounds)
        return 0
    result = ranks.launch(
        "benchmarks.gradient_exchange",
        options.np,
        ["--model", options.model, "--rounds", str(options.rounds)],
    )
    _print(result)
    if options.json:
        harness.write_result(options.json, result)
    return 0


def _print(result: dict[str, Any]) -> None:
    rows = []
    for name in ("horovod", "gloo", "hvd_ext", "copy"):
        title = "a copy (reference)" if name == "copy" else name
        factor = result.get(f"ratio_vs_{name}")
        cells = harness.times(result["time_ms"][name], 2)
        rows.append((title, *cells, f"{factor:.2f} x" if factor else ""))
    console = harness.print_table(
        f"{result['model']}: {result['tensors']} gradients, "
        f"{result['message_bytes'] / 1e6:.1f} MB, {result['size']} ranks",
        ("exchange", "median ms", "middle half ms", "hvd_ext is faster by"),
        rows,
    )
    console.print(f"share of copy bandwidth: {result['share_of_copy_bandwidth']:.2f}")


def _work(model: str, rounds: int) -> None:
    import numpy as np
    import torch
    from mpi4py import MPI

    import hvd_ext.torch as hvd

    torch.set_num_threads(1)
    follows = gradients.start()
    rank, size = hvd.rank(), hvd.size()
    gloo.start(MPI.COMM_WORLD)

    model_shapes = shapes.MODELS[model]()
    of_gloo = [torch.zeros(shape) for shape in model_shapes]
    buckets = _gloo_buckets(of_gloo)

    def with_gloo() -> None:
        pending = []
        for flat, tensors in buckets:
            torch.cat([t.view(-1) for t in tensors], out=flat)
            pending.append(torch.distributed.all_reduce(flat, async_op=True))
        for work, (flat, tensors) in zip(pending, buckets, strict=True):
            work.wait()
            flat.div_(size)
            for tensor, part in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
                tensor.view(-1).copy_(part)

    compared = {
        "horovod": gradients.horovod(model_shapes),
        "gloo": gradients.Contender(of_gloo, with_gloo),
        "hvd_ext": gradients.hvd_ext(model_shapes),
    }
    for name, contender in compared.items():
        gradients.check(name, contender)
    message_bytes = sum(4 * t.numel() for t in of_gloo)
    source = np.ones(message_bytes // 4, np.float32)
    target = np.zeros_like(source)
    contenders = {name: contender.exchange for name, contender in compared.items()}
    contenders["copy"] = lambda: np.copyto(target, source)
    if follows:
        of_hvd_ext = ("hvd_ext", "copy")
        contenders = {
            name: gradients.with_thread_idle(name in of_hvd_ext, exchange)
            for name, exchange in contenders.items()
        }

    def timed(exchange: Callable[[], None]) -> float:
        # Once before the clock starts: caches hold what this exchange left there, and
        # Horovod's thread is not still paying for the priority that it had before.
        exchange()
        return gradients.timed(exchange)

    samples = timing.interleave(contenders, rounds, timed)
    if rank == 0:
        ranks.report(
            {
                "model": model,
                "size": size,
                "tensors": len(model_shapes),
                "message_bytes": message_bytes,
                "time_ms": {
                    name: timing.summary([1e3 * t for t in times])
                    for name, times in samples.items()
                },
                "ratio_vs_horovod": timing.ratio(samples["horovod"], samples["hvd_ext"]),
                "ratio_vs_gloo": timing.ratio(samples["gloo"], samples["hvd_ext"]),
                "share_of_copy_bandwidth": timing.ratio(samples["copy"], samples["hvd_ext"]),
                "mpi": MPI.Get_library_version().split(",")[0],
                "horovods_thread": "idle for hvd_ext's exchange and the copy"
                if follows
                else "the usual priority throughout",
            }
        )
    hvd.shutdown()


def _gloo_buckets(tensors: list[Any]) -> list[tuple[Any, list[Any]]]:
    import torch

    groups: list[list[Any]] = [[]]
    for tensor in reversed(tensors):
        if sum(4 * t.numel() for t in groups[-1]) + 4 * tensor.numel() > _BUCKET_BYTES:
            groups.append([])
        groups[-1].append(tensor)
    return [(torch.empty(sum(t.numel() for t in g)), g) for g in groups if g]


if __name__ == "__main__":
    harness.run(main, "gradient_exchange")
