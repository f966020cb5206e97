"""A whole training step: hvd_ext, Horovod with defaults and tuned, DDP, and no exchange.

Every configuration is a separate job, and the jobs of a model alternate; the others are stopped
meanwhile. All train the same network from the same weights on the same samples, and those that
exchange gradients have to get the same losses.

    alone            no exchange: all ranks train at once, each for itself. The limit.
    alone_together   alone, with a barrier after each step, where ranks wait for the slowest
    horovod          Horovod with its defaults
    horovod_by_hand  Horovod as an expert sets it: Open MPI yields the core while it waits, freed
                     memory is kept, and of six pairs of cycle time and fusion threshold the best
                     is found first
    ddp              torch's DistributedDataParallel on Gloo, gradients in its buckets; freed
                     memory is kept
    ddp_zero         the same with ZeroRedundancyOptimizer
    ddp_fp16         ddp with torch's fp16_compress_hook
    ddp_backend      ddp over the backend hvd_ext in place of Gloo
    ddp_hvd_ext      ddp with hvd_ext.c10d.attach(model)
    ddp_hvd_ext_bf16 the same with compression="bf16" between hosts
    fsdp             torch's fully_shard (FSDP2) on Gloo, a shard of each child of the network;
                     freed memory is kept
    fsdp_hvd_ext     the same with hvd_ext.c10d.fsdp.use(model)
    hvd_ext          import hvd_ext.torch as hvd, without settings
    hvd_ext_sharded  the same with DistributedOptimizer(..., sharded=True)

and, where --arm names them:

    hvd_ext_audit        hvd_ext with HVD_EXT_AUDIT, which takes fingerprints of every step
    hvd_ext_audit_10     of every tenth step, after which ranks also compare their parameters
    hvd_ext_two_passes   steps of two backward passes on each rank: not comparable with the above
    hvd_ext_reproducible the same with DistributedOptimizer(..., reproducible=S)

A step's time is from the end of one to the end of the next. Memory is the most that the kernel
counts to a rank in a step, over what it held before the network was built: anonymous memory, and
of shared pages its part (testbed/usage.py).
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from benchmarks import harness
from benchmarks.training_step import figures, report
from benchmarks.training_step.cases import CASES
from hvd_ext.cli import above_zero, at_least, output_file, progress
from hvd_ext.errors import UsageError
from hvd_ext.system.freed_memory import VARIABLES as KEPT
from testbed import ranks, turns
from testbed.emulated_hosts import Hosts, emulated_hosts

# hvd_ext has found its layout of buckets, and the network its allocator's sizes.
_WARM_UP_STEPS = 6
_CYCLE_TIMES_MS = (1, 3, 10)
_THRESHOLDS_MIB = (16, 128)
_TRIED_STEPS, _TRIED_TURNS = 2, 2
_YIELDING = {"OMPI_MCA_mpi_yield_when_idle": "1"}
# What a user may have set, and an arm that is measured as it comes must not have.
_SET_HERE = (
    "OMPI_MCA_mpi_yield",
    "MALLOC_",
    "GLIBC_TUNABLES",
    "LD_PRELOAD",
    "HOROVOD_",
    "HVD_EXT_",
)


@dataclass(frozen=True)
class Arm:
    """A way to train.

    Attributes:
        exchange: of gradients, as benchmarks.training_step.worker names it.
        variables: set for its ranks.
        memory: what becomes of memory that is freed.
    """

    exchange: str
    variables: Mapping[str, str] = field(default_factory=dict)
    memory: str = "kept by variables"


ARMS = {
    "alone": Arm("none", KEPT),
    "alone_together": Arm("barrier", {**KEPT, **_YIELDING}),
    "horovod": Arm("horovod", memory="default"),
    "horovod_by_hand": Arm("horovod", {**KEPT, **_YIELDING}),
    "ddp": Arm("ddp", KEPT),
    "ddp_zero": Arm("ddp_zero", KEPT),
    "ddp_fp16": Arm("ddp_fp16", KEPT),
    "ddp_backend": Arm("ddp_backend", KEPT),
    "ddp_hvd_ext": Arm("ddp_hvd_ext", KEPT),
    "ddp_hvd_ext_bf16": Arm("ddp_hvd_ext_bf16", KEPT),
    "fsdp": Arm("fsdp", KEPT),
    "fsdp_hvd_ext": Arm("fsdp_hvd_ext", KEPT),
    "hvd_ext": Arm("hvd_ext", memory="kept by hvd.init()"),
    "hvd_ext_sharded": Arm("hvd_ext_sharded", memory="kept by hvd.init()"),
    "hvd_ext_audit": Arm("hvd_ext_audit", memory="kept by hvd.init()"),
    "hvd_ext_audit_10": Arm("hvd_ext_audit_10", memory="kept by hvd.init()"),
    # Steps of two backward passes on each rank: not comparable with those above.
    "hvd_ext_two_passes": Arm("hvd_ext_two_passes", memory="kept by hvd.init()"),
    "hvd_ext_reproducible": Arm("hvd_ext_reproducible", memory="kept by hvd.init()"),
}

_USUAL = list(ARMS)[: list(ARMS).index("hvd_ext_audit")]


def main(arguments: Sequence[str]) -> int:
    """Launch the ranks, or be one."""
    parser = harness.parser("training_step", __doc__, "--model resnet50 --json F", rounds=5)
    parser.add_argument("--np", type=at_least(1), help="ranks (2, or one on each host)")
    parser.add_argument("--hosts", type=at_least(2), help="emulated hosts (this machine alone)")
    parser.add_argument("--gbit", type=above_zero, default=1.0, help="Gbit/s of a host's link (1)")
    parser.add_argument("--model", choices=CASES, action="append", help="only this one")
    parser.add_argument("--arm", choices=ARMS, action="append", help="only this one")
    parser.add_argument("--plot", type=output_file, metavar="PNG", help="draw the steps there")
    parser.add_argument("--steps", type=at_least(1), help="timed in a turn (2 to 30, by model)")
    parser.add_argument("--exchange", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker:
        from benchmarks.training_step.worker import work

        (model,) = options.model
        work(model, options.exchange)
        return 0
    arms = [name for name in ARMS if name in (options.arm or _USUAL)]
    size = options.np or options.hosts or 2
    if options.hosts and size % options.hosts:
        raise UsageError(f"--np {size} on --hosts {options.hosts}: give a multiple of the hosts")
    result: dict[str, Any] = {"size": size, "cases": []}
    with ExitStack() as network:
        hosts: Hosts | None = None
        if options.hosts:
            hosts = network.enter_context(emulated_hosts(options.hosts, options.gbit))
            result |= {"hosts": options.hosts, "gbit": options.gbit}
        for name in options.model or CASES:
            comparison = _Comparison(name, size, options.steps or CASES[name].steps, hosts)
            case = comparison.run(arms, options.rounds)
            result["cases"].append(case)
            report.show(case)
            if options.json:  # after each: it takes minutes
                harness.write_result(options.json, result)
    if options.plot:
        report.draw(result, options.plot)
    return 0


class _Comparison:
    """A model's configurations, interleaved."""

    def __init__(self, model: str, size: int, steps: int, hosts: Hosts | None) -> None:
        self.model = model
        self.hosts = hosts
        self.size = size
        self.steps = steps
        self.variables = {name: dict(arm.variables) for name, arm in ARMS.items()}
        self.tried: list[dict[str, float]] = []

    def run(self, arms: Sequence[str], rounds: int) -> dict[str, Any]:
        """The figures of the model."""
        answers: dict[str, list[list[Any]]] = {name: [] for name in arms}
        turns_in_all = len(arms) * (1 + rounds)
        with ExitStack() as jobs, progress(self.model, turns_in_all) as advance:
            running: dict[str, turns.Job] = {}
            # This one first: of the jobs that it takes, all but one end again.
            for name in sorted(arms, key="horovod_by_hand".__ne__):
                advance(len(running), f"{name} starts")
                running[name] = self._start(name, jobs)
                answers[name].append(running[name].turn({"steps": _WARM_UP_STEPS}))
            for number in range(rounds):
                advance(len(arms) * (1 + number), f"round {number + 1} of {rounds}")
                # The other way round each time, so that no arm always follows the same one.
                for name in running if number % 2 == 0 else reversed(running):
                    answers[name].append(running[name].turn({"steps": self.steps}))
            for job in running.values():
                job.end()
            advance(turns_in_all, "done")
        result = figures.of_arms(answers)
        for name, arm in result["arms"].items():
            arm["freed_memory"] = ARMS[name].memory
            arm["variables"] = self.variables[name]
        return {
            "model": self.model,
            "about": CASES[self.model].about,
            "ranks": self.size,
            "hosts": len(self.hosts.names) if self.hosts else 1,
            **result,
            "tried_by_hand": self.tried,
        }

    def _start(self, name: str, jobs: ExitStack) -> turns.Job:
        return self._best_by_hand(jobs) if name == "horovod_by_hand" else self._job(name, jobs)

    def _best_by_hand(self, jobs: ExitStack) -> turns.Job:
        """The fastest of Horovod's jobs at several cycle times and fusion thresholds."""
        name = "horovod_by_hand"
        tried: list[tuple[turns.Job, dict[str, str], list[float]]] = []
        for cycle_ms, threshold_mib in itertools.product(_CYCLE_TIMES_MS, _THRESHOLDS_MIB):
            variables = {
                **ARMS[name].variables,
                "HOROVOD_CYCLE_TIME": str(cycle_ms),
                "HOROVOD_FUSION_THRESHOLD": str(threshold_mib * 2**20),
            }
            self.variables[name] = variables
            job = self._job(name, jobs)
            job.turn({"steps": _TRIED_STEPS})
            tried.append((job, variables, []))
        for _ in range(_TRIED_TURNS):
            for job, _, times_ms in tried:
                times_ms += figures.step_times_ms(job.turn({"steps": _TRIED_STEPS}))
        tried.sort(key=lambda one: statistics.median(one[2]))
        self.tried = [
            {
                "cycle_time_ms": float(variables["HOROVOD_CYCLE_TIME"]),
                "fusion_threshold_bytes": int(variables["HOROVOD_FUSION_THRESHOLD"]),
                "step_ms": statistics.median(times_ms),
            }
            for _, variables, times_ms in tried
        ]
        (best, self.variables[name], _), *others = tried
        for job, _, _ in others:
            job.end()
        return best

    def _job(self, name: str, jobs: ExitStack) -> turns.Job:
        worker = ["-m", "benchmarks.training_step", "--worker", "--model", self.model]
        environment = {n: v for n, v in ranks.environment().items() if not n.startswith(_SET_HERE)}
        environment |= {**self.variables[name], **ranks.sharing_cores(self.size)}
        launcher = ranks.horovodrun(self.size)
        if self.hosts:
            environment |= self.hosts.environment()
            launcher = self.hosts.mpirun(self.size // len(self.hosts.names))
        started = turns.job(
            f"{self.model} with {name}",
            [
                *launcher,
                sys.executable,
                *worker,
                "--exchange",
                ARMS[name].exchange,
            ],
            environment,
            self.size,
        )
        return jobs.enter_context(started)


if __name__ == "__main__":
    harness.run(main, "training_step")
