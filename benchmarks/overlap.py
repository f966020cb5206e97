"""How much of the gradient exchange is left after backward, in a step bound by communication?

A multilayer perceptron with many weights and a batch of a few samples: its gradients are
large for what they take to compute. It is trained without any exchange, with Horovod's
DistributedOptimizer, and with hvd_ext's, interleaved. The additional time of a step with an
exchange is exposed; all else, copies into the arena included, is hidden.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks import harness
from benchmarks.harness import gradients
from hvd_ext.cli import at_least
from testbed import ranks, timing

_WIDTH, _LAYERS, _SAMPLES = 1448, 12, 4


def main(arguments: Sequence[str]) -> int:
    """Launch the ranks, or be one."""
    parser = harness.parser("overlap", __doc__, "--json F", rounds=40)
    parser.add_argument("--np", type=at_least(1), default=2, help="ranks (2)")
    options = parser.parse_args(arguments)
    if options.worker:
        _work(options.rounds)
        return 0
    result = ranks.launch("benchmarks.overlap", options.np, ["--rounds", str(options.rounds)])
    _print(result)
    if options.json:
        harness.write_result(options.json, result)
    return 0


def _print(result: dict[str, Any]) -> None:
    exposed = {name: f"{ms:.1f}" for name, ms in result["exposed_ms"].items()}
    console = harness.print_table(
        f"{result['message_bytes'] / 1e6:.0f} MB of gradients, {result['size']} ranks",
        ("exchange", "step ms", "middle half ms", "exposed ms"),
        (
            (name, *harness.times(time_ms, 1), exposed.get(name, ""))
            for name, time_ms in result["step_ms"].items()
        ),
    )
    ratio = result["exposed_ratio_vs_horovod"]
    console.print(f"exposed with hvd_ext, divided by exposed with Horovod: {ratio:.2f}")
    console.print(result["buckets"], soft_wrap=True, highlight=False)


def _work(rounds: int) -> None:
    import horovod.torch as horovod
    import torch
    from mpi4py import MPI

    import hvd_ext.torch as hvd

    torch.set_num_threads(1)
    follows = gradients.start()

    def perceptron() -> Any:
        torch.manual_seed(1)
        layers = [torch.nn.Linear(_WIDTH, _WIDTH, bias=False) for _ in range(_LAYERS)]
        return torch.nn.Sequential(*layers)

    batch = torch.randn(_SAMPLES, _WIDTH, generator=torch.Generator().manual_seed(hvd.rank()))

    def stepper(model: Any, optimizer: Any) -> Callable[[], None]:
        def step() -> None:
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()

        return step

    models = {name: perceptron() for name in ("none", "horovod", "hvd_ext")}
    plain = {n: torch.optim.SGD(m.parameters(), lr=0.01) for n, m in models.items()}
    ours: Any = hvd.DistributedOptimizer(plain["hvd_ext"], models["hvd_ext"].named_parameters())
    wrapped = {
        "none": plain["none"],
        "horovod": horovod.DistributedOptimizer(
            plain["horovod"], models["horovod"].named_parameters()
        ),
        "hvd_ext": ours,
    }
    steps = {name: stepper(models[name], wrapped[name]) for name in models}
    for _ in range(6):
        for step in steps.values():
            step()
    for a, b in zip(models["horovod"].parameters(), models["hvd_ext"].parameters(), strict=True):
        if not torch.allclose(a, b, rtol=1e-5, atol=1e-7):
            raise harness.BenchmarkError("hvd_ext's weights are not Horovod's after 6 steps")
    if follows:
        steps = {
            name: gradients.with_thread_idle(name != "horovod", step)
            for name, step in steps.items()
        }
    samples = timing.interleave(steps, rounds, gradients.timed)
    alone_s = statistics.median(samples["none"])
    exposed = {
        name: 1e3 * (statistics.median(samples[name]) - alone_s) for name in ("horovod", "hvd_ext")
    }
    if hvd.rank() == 0:
        ranks.report(
            {
                "size": hvd.size(),
                "message_bytes": sum(4 * p.numel() for p in models["none"].parameters()),
                "step_ms": {
                    name: timing.summary([1e3 * t for t in times])
                    for name, times in samples.items()
                },
                "exposed_ms": exposed,
                "exposed_ratio_vs_horovod": exposed["hvd_ext"] / exposed["horovod"],
                "buckets": ours.explain().splitlines()[0],
                "mpi": MPI.Get_library_version().split(",")[0],
            }
        )
    hvd.shutdown()


if __name__ == "__main__":
    harness.run(main, "overlap")
