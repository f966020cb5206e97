"""The list of faults, and of pairs of runs that are to give no alarm."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from tests.audit_faults import faults
from tests.audit_faults.faults import Fault

STEPS = 8
ALL = ()
# A parameter that is not damaged itself: the first gradient that differs in backward.
FIRST = "the first"


@dataclass(frozen=True)
class Setup:
    """How a run is made.

    Attributes:
        ranks: of the job.
        per_node: ranks of a pretended node; 0: all.
        algorithm: between those nodes; "": as it comes.
        seed: of the weights and the random numbers of the model.
        data_seed: of the samples.
        threads: torch's, of each rank.
        broadcast: of weights, which each rank draws: "", "before" or "after" the optimizer is made,
            or all but a parameter that is named.
        every: steps from one audit to the next.
        slots: of a reproducible step; 0: an ordinary one.
        passes: backward passes of a step.
        extra: what else the program does: "validate", "clip", "state" (broadcasts it).
        arguments: of DistributedOptimizer.
        bucket_bytes: as HVD_EXT_BUCKET_BYTES.
    """

    ranks: int = 2
    per_node: int = 0
    algorithm: str = ""
    seed: int = 0
    data_seed: int = 0
    threads: int = 1
    broadcast: str = "after"
    every: int = 1
    slots: int = 0
    passes: int = 1
    extra: str = ""
    arguments: tuple[tuple[str, Any], ...] = ()
    bucket_bytes: str = ""


@dataclass(frozen=True)
class Run:
    """A training, with or without a fault.

    Attributes:
        name: of its folder.
        on: the ranks on which the fault is.
    """

    name: str
    net: str
    setup: Setup
    fault: Fault | None = None
    step: int = 0
    parameter: str | None = None
    on: tuple[int, ...] = ALL


@dataclass(frozen=True)
class Case:
    """A pair of runs, and what an audit is to say of it.

    Attributes:
        group: the class of the fault.
        step: with the fault, from 1 on; 0: before the first.
        kind: what differs first; "": nothing.
        parameter: that is damaged; FIRST: it follows from the gradients; None: not looked at.
        on: the ranks on which the fault is.
        healthy, faulty: how the runs are made; faulty: None: as healthy.
        ranks: that differ; ALL: all; None: those of `on`.
        seen_in: the first audited step that shows it; None: the step itself.
    """

    name: str
    group: str
    net: str
    kind: str = ""
    parameter: str | None = None
    step: int = 3
    on: tuple[int, ...] = ALL
    fault: Fault | None = None
    healthy: Setup = field(default_factory=Setup)
    faulty: Setup | None = None
    ranks: tuple[int, ...] | None = None
    seen_in: int | None = None

    @property
    def first(self) -> Run:
        """The run without a fault."""
        return Run(f"{self.net}-{_name(self.healthy)}", self.net, self.healthy)

    @property
    def second(self) -> Run:
        """The run with it."""
        setup = self.faulty or self.healthy
        return Run(
            *(f"case-{self.name.replace(' ', '-')}", self.net, setup, self.fault, self.step),
            self.parameter,
            self.on,
        )


def _name(setup: Setup) -> str:
    changed = {key: value for key, value in vars(setup).items() if value != getattr(Setup(), key)}
    text = "-".join(f"{key}={value}" for key, value in changed.items()) or "plain"
    return "".join(letter if letter.isalnum() or letter in "=-_" else "_" for letter in text)


FOUR = Setup(ranks=4)
RING, DOUBLING, HALVING = (
    Setup(ranks=4, per_node=1, algorithm=name)
    for name in ("ring", "recursive_doubling", "rabenseifner")
)
NODES = Setup(ranks=4, per_node=2)
SHARDED = Setup(arguments=(("sharded", True),))


def _gradients() -> Iterator[Case]:
    places = [
        ("small", "conv.weight", 1, 0, 20, (1,), Setup()),
        ("small", "norm.bias", 2, 5, 0, (0,), Setup()),
        ("small", "hidden.weight", 8, 300, 31, (1,), Setup()),
        ("small", "out.bias", 5, 2, 22, (0, 1), Setup()),
        ("small", "hidden.bias", 6, 7, 12, (3,), FOUR),
        ("small", "out.weight", 4, 9, 20, (1,), SHARDED),
        ("edsr", "head.0.weight", 3, 11, 3, (1,), Setup()),
        ("edsr", "body.1.body.0.bias", 7, 4, 20, (0,), Setup()),
        ("edsr", "tail.0.0.weight", 4, 100, 8, (2,), FOUR),
    ]
    for net, parameter, step, element, bit, on, setup in places:
        yield Case(
            *(f"bit {bit} of {parameter} of {net}", "gradient bit", net, "gradient", parameter),
            *(step, on, faults.flip_gradient(element, bit), setup),
        )


def _sums() -> Iterator[Case]:
    places = [
        ("small", "conv.bias", 1, 1, 20, (1,), Setup()),
        ("small", "hidden.weight", 5, 12, 4, (0,), Setup()),
        ("small", "out.weight", 8, 3, 30, (2,), FOUR),
        ("edsr", "body.0.body.2.weight", 2, 33, 18, (1,), Setup()),
        ("edsr", "tail.1.bias", 6, 2, 0, (0,), Setup()),
    ]
    for net, parameter, step, element, bit, on, setup in places:
        yield Case(
            *(f"sum bit {bit} of {parameter} of {net}", "sum bit", net, "sum", parameter),
            *(step, on, faults.flip_sum(element, bit), setup),
        )
    for net, parameter, step, setup in (
        ("small", "hidden.bias", 4, Setup()),
        ("edsr", "body.2.weight", 7, FOUR),
        ("small", "norm.weight", 3, NODES),
    ):
        yield Case(
            *(f"{parameter} of {net} before the exchange", "sum bit", net, "sum", parameter),
            *(step, (1,), faults.flip_before_exchange(), setup),
            ranks=ALL,
        )


def _parameters() -> Iterator[Case]:
    for net, parameter, step, point, on, setup in (
        ("small", "conv.weight", 2, "forward", (1,), Setup()),
        ("small", "out.bias", 5, "update", (0,), Setup()),
        ("small", "hidden.weight", 8, "forward", (3,), FOUR),
        ("edsr", "body.1.body.2.weight", 3, "forward", (1,), Setup()),
        ("edsr", "head.0.bias", 7, "update", (2,), FOUR),
    ):
        yield Case(
            *(f"{parameter} of {net} before {point}", "parameter bit", net, "update", parameter),
            *(step, on, faults.flip_parameter(point), setup),
        )


def _samples() -> Iterator[Case]:
    for name, net, fault, step, on, setup in (
        ("two samples swapped", "small", faults.swap_samples(0, 5), 4, (1,), Setup()),
        ("samples swapped on all ranks", "edsr", faults.swap_samples(1, 2), 1, ALL, Setup()),
        ("a sample repeated", "edsr", faults.repeat_sample(0, 3), 6, (0,), Setup()),
        ("a sample mirrored", "edsr", faults.mirror_sample(2), 8, (3,), FOUR),
        ("a sample mirrored, sharded", "small", faults.mirror_sample(1), 2, (1,), SHARDED),
    ):
        yield Case(name, "sample", net, "input", None, step, on, fault, setup)
    third = Setup(every=3)
    swap = faults.swap_samples(0, 1)
    yield Case("swapped in an audited step", "sample", "small", "input", None, 6, (1,), swap, third)
    # The step itself is not audited: what it left behind is.
    yield Case(
        "swapped between two audits",
        "sample",
        "small",
        "gradient",
        None,
        *(4, (1,), swap, third),
        ranks=ALL,
        seen_in=6,
    )


def _seeds() -> Iterator[Case]:
    for net in ("small", "edsr"):
        yield Case(
            *(f"weights of {net}", "seed", net, "initial parameters", None, 0),
            faulty=Setup(seed=1),
        )
        yield Case(*(f"samples of {net}", "seed", net, "input", None, 1), faulty=Setup(data_seed=1))
    for step, on in ((1, ALL), (7, (1,))):
        yield Case(
            *(f"dropout in step {step}", "seed", "small", "gradient", FIRST, step, on),
            faults.reseed(99),
        )


def _threads() -> Iterator[Case]:
    for net, threads in (("small", 2), ("edsr", 2), ("edsr", 3)):
        yield Case(
            *(f"{threads} threads of {net}", "threads", net, "gradient", FIRST, 1),
            faulty=Setup(threads=threads),
        )


def _algorithms() -> Iterator[Case]:
    for net, first, second in (
        ("small", RING, DOUBLING),
        ("edsr", RING, HALVING),
        ("small", DOUBLING, Setup(ranks=4, per_node=1, algorithm="direct")),
        ("edsr", NODES, Setup(ranks=4)),
    ):
        second_name = second.algorithm or "one node"
        yield Case(
            *(f"{second_name} in place of {first.algorithm or 'two'}", "algorithm", net, "sum"),
            *(FIRST, 1, ALL, None, first, second),
        )


def _hooks() -> Iterator[Case]:
    for net, fault, step, on, setup in (
        ("small", faults.hook_output("norm"), 3, (1,), Setup()),
        ("small", faults.hook_output("out"), 6, (2,), FOUR),
        ("edsr", faults.hook_output("body"), 5, (0,), Setup()),
        ("small", faults.hook_backward("hidden"), 2, (1,), Setup()),
        ("edsr", faults.hook_backward("tail"), 4, (1,), Setup()),
    ):
        name = f"hook of {net} in step {step}"
        yield Case(name, "hook", net, "gradient", FIRST, step, on, fault, setup)


def _operators() -> Iterator[Case]:
    for name, net, version, step in (
        ("linear", "small", faults.linear_in_float64, 3),
        ("batch_norm", "small", faults.batch_norm_by_formula, 1),
        ("dropout", "small", faults.dropout_by_mask, 8),
        ("conv2d", "edsr", faults.conv2d_in_float64, 5),
        ("relu", "edsr", faults.relu_leaky, 2),
    ):
        fault = faults.replace_operator(name, version)
        yield Case(f"another {name}", "operator", net, "gradient", FIRST, step, ALL, fault)


def _broadcasts() -> Iterator[Case]:
    kind = "initial parameters"
    for net, parameter, ranks in (
        ("small", "", 2),
        ("edsr", "", 4),
        ("small", "hidden.weight", 4),
        ("edsr", "body.0.body.0.bias", 2),
    ):
        setup = Setup(ranks=ranks)
        yield Case(
            *(f"{parameter or 'all'} of {net} not broadcast", "broadcast", net, kind),
            *(parameter or None, 0, ALL, None, setup),
            Setup(ranks=ranks, broadcast=parameter),
            ranks=tuple(range(1, ranks)),
        )


def _optimizers() -> Iterator[Case]:
    for net, fault, parameter, step, on in (
        ("small", faults.flip_state("exp_avg"), "hidden.weight", 4, (1,)),
        ("edsr", faults.flip_state("exp_avg_sq", 1, 24), "tail.1.weight", 6, ALL),
        ("small", faults.set_option("lr", 0.02), None, 3, ALL),
        ("edsr", faults.set_option("betas", (0.8, 0.99)), None, 5, (1,)),
    ):
        name = f"optimizer of {net} in step {step}"
        yield Case(name, "optimizer", net, "update", parameter, step, on, fault)


def _healthy() -> Iterator[Case]:
    accumulated = Setup(passes=2, arguments=(("backward_passes_per_step", 2),))
    bf16 = Setup(per_node=1, arguments=(("compression", "bf16"),))
    late = Setup(per_node=1, arguments=(("sync", "one_step_late"),))
    local = Setup(ranks=4, per_node=2, arguments=(("sync", "local_sgd:steps=3"),))
    slots, on_four = (Setup(ranks=ranks, slots=4) for ranks in (2, 4))
    # A ring's bits depend on its buckets, which otherwise follow from measurement.
    ring = replace(RING, bucket_bytes="2 KiB")
    for name, net, first, second in (
        ("the same", "small", Setup(), None),
        ("the same", "edsr", Setup(), None),
        ("four ranks", "small", FOUR, None),
        ("four ranks", "edsr", FOUR, None),
        ("sharded or not", "small", Setup(), SHARDED),
        ("sharded or not", "edsr", Setup(), SHARDED),
        ("other buckets", "small", Setup(), Setup(bucket_bytes="2 KiB")),
        ("other buckets", "edsr", Setup(), Setup(bucket_bytes="8 KiB")),
        ("every third step", "small", Setup(), Setup(every=3)),
        ("broadcast before and after", "edsr", Setup(), Setup(broadcast="before")),
        ("the optimizer's state broadcast", "small", Setup(extra="state"), None),
        ("validation in between", "small", Setup(), Setup(extra="validate")),
        ("clipped", "edsr", Setup(extra="clip"), None),
        ("two passes", "small", accumulated, None),
        ("four slots on 2 and 4 ranks", "small", slots, on_four),
        ("four slots on 2 and 4 ranks", "edsr", slots, on_four),
        ("ring", "small", ring, None),
        ("two nodes", "edsr", NODES, None),
        ("one node or two of 2 ranks", "edsr", Setup(), Setup(per_node=1)),
        ("bf16 between nodes", "edsr", bf16, None),
        ("one step late", "small", late, None),
        ("local SGD", "small", local, None),
        ("two threads", "edsr", Setup(threads=2), None),
    ):
        yield Case(f"{name} ({net})", "healthy", net, healthy=first, faulty=second)


FAULTS = (
    *_gradients(),
    *_sums(),
    *_parameters(),
    *_samples(),
    *_seeds(),
    *_threads(),
    *_algorithms(),
    *_hooks(),
    *_operators(),
    *_broadcasts(),
    *_optimizers(),
)
CASES = (*FAULTS, *_healthy())


def runs(cases: tuple[Case, ...], ranks: int) -> list[Run]:
    """The runs of these cases at so many ranks, each once."""
    every = [run for case in cases for run in (case.first, case.second)]
    return list({run.name: run for run in every if run.setup.ranks == ranks}.values())
