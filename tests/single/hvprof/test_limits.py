"""hvprof limits: the bounds that Keuper and Pfreundt's figures give, from layers and a link."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hvd_ext.errors import UsageError
from hvprof.analysis.limits.compute import Compute, Gradient, batch_time
from hvprof.analysis.limits.exchange import RING, TREE, over_link, passes
from hvprof.analysis.limits.overlap import LayerOverlap, recorded_overlap
from hvprof.analysis.limits.step_time import StepModel
from hvprof.analysis.limits.stops import crossing
from hvprof.analysis.order_statistics import expected_maximum, expected_maximum_of
from hvprof.cli import main
from tests.support.hvprof.limits_command import layer, limits, write_layers

# Keuper and Pfreundt, "Distributed Training of Deep Neural Networks: Theoretical and Practical
# Limits of Parallel Scalability" (MLHPC 2016), tables I and II: bytes of the model, batch of all
# ranks, iterations to convergence; seconds of an iteration and hours of all of them by device.
NETS = {"alexnet": (250e6, 256, 450_000), "googlenet": (50e6, 32, 1_000_000)}
TABLE = {
    ("alexnet", "CPU"): (2.0, 250),
    ("alexnet", "K80"): (0.9, 112),
    ("alexnet", "TitanX"): (0.2, 25),
    ("alexnet", "KNL"): (0.6, 75),
    ("googlenet", "CPU"): (1.3, 361),
    ("googlenet", "K80"): (0.36, 100),
    ("googlenet", "KNL"): (0.32, 89),
}
# FDR InfiniBand, 4 lanes of 14.0625 Gbit/s, 64 of 66 bits of data.
FDR_GBIT = 4 * 14.0625 * 64 / 66
# Worked out by hand from these: ranks at which a ring takes as long as compute; the speedup
# without overlap that no number of ranks passes; the same on as many ranks as samples.
BOUNDS = {
    ("alexnet", "CPU"): (28.27, 27.27, 24.73),
    ("alexnet", "K80"): (13.27, 12.27, 11.76),
    ("alexnet", "TitanX"): (3.73, 2.73, 2.71),
    ("alexnet", "KNL"): (9.18, 8.18, 7.96),
    ("googlenet", "CPU"): (89.64, 88.64, 23.71),
    ("googlenet", "K80"): (25.55, 24.55, 14.14),
    ("googlenet", "KNL"): (22.82, 21.82, 13.22),
}
# Best number of ranks and speedup without overlap, if the exchange is a tree.
TREES = {
    ("alexnet", "K80"): (8, 2.71),
    ("alexnet", "TitanX"): (2, 1.15),
    ("googlenet", "K80"): (16, 4.44),
}


def keuper(path: Path, net: str, device: str) -> tuple[Path, list[str]]:
    message_bytes, batch, _ = NETS[net]
    time_s = TABLE[net, device][0]
    whole = layer("net", [time_s], int(message_bytes), 2 / 3 * time_s)
    written = write_layers(path / "layers.json", [batch], [whole])
    return written, ["--link", str(FDR_GBIT), "--batch", str(batch)]


@pytest.mark.parametrize(("net", "device"), TABLE)
def test_hours_to_convergence_are_those_of_the_paper(net: str, device: str) -> None:
    seconds, hours = TABLE[net, device]
    assert NETS[net][2] * seconds / 3600 == pytest.approx(hours, abs=0.51)


@pytest.mark.parametrize(("net", "device"), BOUNDS)
def test_the_bound_of_communication(
    net: str, device: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, flags = keuper(tmp_path, net, device)
    found = limits(capsys, path, *flags)
    ranks, most, at_batch = BOUNDS[net, device]
    batch = NETS[net][1]
    ring = found["ring"]
    assert ring["stops"]["exchange"] == pytest.approx(ranks, rel=0.01)
    assert ring["stops"]["batch"] == batch
    # The speedup without overlap comes to its limit as 1 - 1/p does.
    last = ring["strong"][-1]
    assert last["ranks"] == batch
    assert last["speedup_no_overlap"] == pytest.approx(at_batch, rel=0.01)
    bound = last["speedup_no_overlap"]
    assert 1 / (1 / bound - 1 / batch) * (1 - 1 / batch) == pytest.approx(most, rel=0.01)
    rules = "batch" if ranks > batch else "exchange"
    assert ring["rules"]["limit"] == rules
    assert ring["rules"]["ranks"] == pytest.approx(min(ranks, batch), rel=0.01)


@pytest.mark.parametrize(("net", "device"), TREES)
def test_the_best_that_a_tree_allows(
    net: str, device: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, flags = keuper(tmp_path, net, device)
    rows = limits(capsys, path, *flags)["tree"]["strong"]
    best = max(rows, key=lambda row: row["speedup_no_overlap"])
    ranks, speedup = TREES[net, device]
    assert best["ranks"] == ranks
    assert best["speedup_no_overlap"] == pytest.approx(speedup, rel=0.01)


def test_the_verdict_is_one_sentence_with_its_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, flags = keuper(tmp_path, "alexnet", "K80")
    assert main(["limits", str(path), *flags]) == 0
    text = capsys.readouterr().out
    assert text.startswith(
        "A batch of 256 gains nothing beyond 13 ranks: the exchange takes 67.8 ms, "
    )
    assert "with twice the bandwidth: 25 ranks" in text
    assert "238.4 MiB exchanged in a step; bandwidth: 6.82 GB/s" in text


def test_twice_the_bandwidth_is_twice_the_distance() -> None:
    model = one_layer_model(RING, link_gb_s=1.0)
    first, second = crossing(model), crossing(model.with_bandwidth(2))
    assert first is not None
    assert second is not None
    assert second - 1 == pytest.approx(2 * (first - 1), rel=1e-6)


def one_layer_model(algorithm: str, link_gb_s: float) -> StepModel:
    exchange = over_link(algorithm, 1e8, link_gb_s, ranks_per_node=1)
    compute = Compute(batch_time([64], [0.5]), batch_time([64], [1.0]))
    return StepModel(1, 64, compute, exchange, recorded_overlap(1.0, 1.0, 0.5))


def test_passes_of_the_gradients() -> None:
    assert [passes(RING, n) for n in (1, 2, 4)] == [0, 1, 1.5]
    assert [passes(TREE, n) for n in (1, 2, 3, 4, 8, 9)] == [0, 2, 4, 4, 6, 8]


def test_ranks_of_a_node_share_its_link() -> None:
    exchange = over_link(RING, 1e9, 1.0, ranks_per_node=4)
    assert exchange.time_s(4) == 0
    assert exchange.time_s(8) == pytest.approx(1.0)
    assert exchange.time_s(16) == pytest.approx(1.5)


# Batch and images/s of ResNet-50 on a TitanX, published in docs/benchmark.md of
# github.com/knjcode/mxnet-finetuner.
FINETUNER = {10: 88.55, 20: 102.44, 30: 109.98, 40: 111.04}


def test_the_time_of_a_larger_batch_follows_from_smaller_ones() -> None:
    times_s = {batch: batch / speed for batch, speed in FINETUNER.items()}
    small = [batch for batch in FINETUNER if batch < 40]
    fitted = batch_time(small, [times_s[batch] for batch in small])
    assert fitted.at(40) == pytest.approx(times_s[40], rel=0.03)
    large = [batch for batch in FINETUNER if batch > 10]
    fitted = batch_time(large, [times_s[batch] for batch in large])
    assert fitted.at(10) == pytest.approx(times_s[10], rel=0.03)


@pytest.mark.parametrize(("fixed_s", "sample_s"), [(0.2, 0.01), (0.2, 0.0), (0.0, 0.3), (0, 0)])
def test_a_line_is_found(fixed_s: float, sample_s: float) -> None:
    found = batch_time([1, 4, 64], [fixed_s + sample_s * batch for batch in (1, 4, 64)])
    assert found.fixed_s == pytest.approx(fixed_s, abs=1e-9)
    for batch in (0.25, 1, 3, 64, 1000):
        assert found.at(batch) == pytest.approx(fixed_s + sample_s * batch, abs=1e-9)


def test_between_batches_that_were_timed_nothing_else_counts() -> None:
    found = batch_time([2, 4, 8], [0.3, 0.4, 0.9])
    assert [found.at(batch) for batch in (2, 3, 4, 6, 8)] == pytest.approx(
        [0.3, 0.35, 0.4, 0.65, 0.9]
    )


def test_below_the_smallest_batch_small_ones_count_most() -> None:
    """Narrow matrix products take less than wide ones foretell: the curve bends."""
    found = batch_time([2, 4, 8, 64], [0.3, 0.4, 0.55, 1.5])
    assert found.at(1) == pytest.approx(0.25, rel=0.05)


def test_times_that_fall_with_the_batch_give_no_negative_part() -> None:
    found = batch_time([1, 2, 4], [0.4, 0.3, 0.2])
    assert found.fixed_s == pytest.approx(0.4)
    assert found.at(0.5) == pytest.approx(0.4)
    assert found.at(100) == pytest.approx(0.2)


def test_skinny_layers_stop_a_batch_from_shrinking(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    batches = [1, 16]
    convolution = layer("conv", [0.01, 0.16], 10_000, 0.1)
    skinny = layer("fc", [0.02, 0.02], 1_000_000, 0.001)
    path = write_layers(tmp_path / "layers.json", batches, [convolution, skinny])
    found = limits(capsys, path, "--link", 1000, "--batch", 16, "--efficiency", 1)
    rows = {row["ranks"]: row for row in found["ring"]["strong"]}
    # Free communication still gives no more than the layers do (their times, summed).
    assert rows[16]["compute_s"] == pytest.approx(0.03, rel=1e-6)
    assert rows[16]["speedup_full_overlap"] == pytest.approx(0.18 / 0.03, rel=1e-3)
    assert found["fixed_s"] == pytest.approx(0.02, rel=1e-6)
    assert found["skinny"] == ["fc"]
    assert main(["limits", str(path), "--link", "1000"]) == 0
    assert "20 ms of compute do not shrink with the batch: 9 x at most" in capsys.readouterr().out


def test_overlap_differs_by_when_gradients_are_ready(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def exposed_s(large_first: bool) -> float:
        ready = (0.1, 0.6) if large_first else (0.6, 0.1)
        layers = [
            layer("large", [0.45], 90_000_000, ready[0]),
            layer("small", [0.45], 10_000_000, ready[1]),
        ]
        path = write_layers(tmp_path / "layers.json", [8], layers)
        rows = limits(capsys, path, "--link", 4, "--batch", 8)["ring"]["strong"]
        return next(row["exposed_s"] for row in rows if row["ranks"] == 2)

    # Two ranks send the gradients once: 0.2 s. Backward, 0.3 s of each, hides all but its last
    # layer's, or nothing of what is ready with its end.
    assert exposed_s(large_first=True) == pytest.approx(0.02, rel=1e-6)
    assert exposed_s(large_first=False) == pytest.approx(0.18, rel=1e-6)


def test_gradients_are_exchanged_one_after_the_other() -> None:
    overlap = LayerOverlap([Gradient(300, 0.2), Gradient(100, 0.5), Gradient(600, 1.0)])
    # begins at 2, 5 (the first is done) and 10: ends at 16 of 10.
    assert overlap.exposed_s(10.0, 10.0) == pytest.approx(6.0)
    # begins at 2, 8 and 10: ends at 22.
    assert overlap.exposed_s(20.0, 10.0) == pytest.approx(12.0)


def test_hidden_communication_comes_to_light_when_compute_shrinks() -> None:
    overlap = recorded_overlap(exposed_s=0.01, exchange_s=0.4, backward_s=0.5)
    assert overlap.exposed_s(0.4, 0.5) == pytest.approx(0.01)
    assert overlap.exposed_s(0.4, 0.45) == pytest.approx(0.01)
    assert overlap.exposed_s(0.4, 0.25) == pytest.approx(0.15)
    # One that had no room left grows by all that compute loses.
    full = recorded_overlap(exposed_s=0.3, exchange_s=0.7, backward_s=0.5)
    assert full.exposed_s(0.7, 0.5) == pytest.approx(0.3)
    assert full.exposed_s(0.7, 0.25) == pytest.approx(0.5)


# Of n normal values, in standard deviations: David and Nagaraja, "Order Statistics", and by
# scipy's quadrature below.
MAXIMA = {2: 0.564, 4: 1.029, 8: 1.424, 16: 1.766, 32: 2.070, 64: 2.344, 128: 2.595}
MAXIMA |= {256: 2.827, 512: 3.044, 1024: 3.248}


@pytest.mark.parametrize("ranks", MAXIMA)
def test_the_last_of_many_ranks(ranks: int) -> None:
    # Slow to import: not by each process that collects these tests.
    from scipy import stats

    assert expected_maximum(ranks) == pytest.approx(MAXIMA[ranks], abs=6e-4)
    exact = stats.norm.expect(lambda x: ranks * x * stats.norm.cdf(x) ** (ranks - 1), lb=-9, ub=9)
    assert expected_maximum(ranks) == pytest.approx(exact, abs=1e-4)


def test_the_last_of_recorded_times() -> None:
    from scipy import stats

    sample = np.sort(stats.norm.ppf((np.arange(20_000) + 0.5) / 20_000))
    assert expected_maximum_of(sample, 8) == pytest.approx(MAXIMA[8], abs=2e-3)
    assert expected_maximum_of(sample, 1e12) == pytest.approx(sample[-1])
    assert expected_maximum(1) == 0
    # One that is always largest is the only one that counts.
    assert expected_maximum(8, ahead=20) == pytest.approx(0, abs=1e-9)
    assert expected_maximum_of(sample, 8, ahead=20) == pytest.approx(0, abs=1e-9)
    assert expected_maximum_of(sample, 8, 1) == pytest.approx(expected_maximum(8, 1), abs=2e-3)


@pytest.mark.parametrize(
    ("change", "flags", "said"),
    [
        ({}, ["--batch", "8"], "no link: give --link"),
        ({"gradient_bytes": 0}, ["--link", "10"], "have no gradients"),
        ({"forward_s": [0.0], "backward_s": [0.0]}, ["--link", "10"], "have no time"),
        ({}, ["--link", "10", "--efficiency", "100"], "a percentage below 100"),
        ({"forward_s": [math.nan]}, ["--link", "10"], "is not a table of layers"),
        ({"forward_s": [-1.0]}, ["--link", "10"], "is not a table of layers"),
        ({"forward_s": [1e308]}, ["--link", "10"], "is not a table of layers"),
        ({"gradient_bytes": -1}, ["--link", "10"], "is not a table of layers"),
        ({"gradient_bytes": 10**300}, ["--link", "10"], "is not a table of layers"),
        ({}, ["--link", "1e-310"], "give Gbit/s from 0.001 to 1e.06"),
    ],
)
def test_what_cannot_be_answered_is_one_line(
    change: dict[str, Any], flags: list[str], said: str, tmp_path: Path
) -> None:
    path = write_layers(tmp_path / "l.json", [8], [{**layer("l", [0.3], 1000, 0.1), **change}])
    with pytest.raises(UsageError, match=said) as raised:
        main(["limits", str(path), *flags])
    assert "\n" not in str(raised.value)


def test_a_source_that_is_missing_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a folder"):
        main(["limits", str(tmp_path / "absent")])


def test_a_step_is_the_sum_of_its_parts() -> None:
    model = dataclasses.replace(one_layer_model(RING, 1.0), io_s=0.2, other_s=0.1, slowed=0.5)
    step = model.strong(4)
    assert step.exchange_s == pytest.approx(0.15)
    parts = (0.375, 0.075, 0.15, 0.05, 0.1)  # compute, slowed, exposed, input, other
    assert step.time_s == pytest.approx(sum(parts))
    assert step.full_overlap_s <= step.time_s <= step.no_overlap_s
    assert model.weak(4).compute_s == pytest.approx(1.5)
    assert model.weak(4).io_s == pytest.approx(0.2)
