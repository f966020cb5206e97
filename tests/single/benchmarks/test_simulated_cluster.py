"""The arithmetic of benchmarks.simulated_cluster: errors, choices, slopes, and steps."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.figure import Figure

from benchmarks.figures.growth import slower_from
from benchmarks.simulated_cluster import figures
from benchmarks.simulated_cluster.scaling import slopes
from benchmarks.simulated_cluster.steps import Step, horovod_step_s, own_step_s
from benchmarks.simulated_cluster.validation import compare, sizes


def test_sizes_are_whole_floats_from_4_kib_to_64_mib() -> None:
    found = sizes(16, 64 << 20)
    assert (len(found), found[0], found[-1]) == (16, 4096, 64 << 20)
    assert all(size % 4 == 0 for size in found)
    assert found == sorted(set(found))


def test_a_wrong_choice_is_right_if_it_costs_little() -> None:
    measured = {1: {"a": 1.0, "b": 1.04}, 2: {"a": 1.0, "b": 1.1}}
    predicted = {1: {"a": 1.0, "b": 0.9}, 2: {"a": 1.2, "b": 1.1}}
    found = compare(measured, predicted)
    assert found["right_choices"] == 1
    assert found["choices"][1] == {
        "message_bytes": 2,
        "predicted": "b",
        "measured": "a",
        "costs": 1.1,
    }
    assert found["worst_error"] == pytest.approx(0.2)
    assert found["median_error"] == pytest.approx((0.14 / 1.04 + 0) / 2, abs=0.07)


def test_slopes_tell_linear_growth_from_logarithmic() -> None:
    ranks = [4, 16, 64, 256]
    line = slopes(ranks, [1e-6 * count for count in ranks])
    assert line["s_per_rank"] == pytest.approx(1e-6)
    assert line["r2_ranks"] == pytest.approx(1)
    assert line["r2_doublings"] < 0.8
    tree = slopes(ranks, [2e-6, 4e-6, 6e-6, 8e-6])
    assert tree["s_per_doubling"] == pytest.approx(1e-6)
    assert tree["r2_doublings"] == pytest.approx(1)
    assert tree["r2_ranks"] < 0.8


def test_buckets_are_exchanged_one_after_the_other_while_the_step_computes() -> None:
    step = Step(1.0, ((0.2, 100), (0.4, 100), (0.8, 100)))
    # 0.1 s each: all hidden but the last one, which ends 0.1 s after it was ready.
    assert own_step_s(step, lambda size: 0.1) == pytest.approx(1.1)
    # 0.5 s each: they follow one another from 0.2 on, to 1.7; 0.2 s of compute is left then.
    assert own_step_s(step, lambda size: 0.5) == pytest.approx(1.9)
    assert own_step_s(Step(1.0, ()), lambda size: 0.5) == 1.0
    scaled = step.scaled(2.0)
    assert scaled.compute_s == 2.0
    assert scaled.buckets == ((0.4, 100), (0.8, 100), (1.6, 100))


def test_horovod_fuses_what_is_ready_in_a_cycle() -> None:
    exchanged: list[float] = []

    def exchange(size: float) -> float:
        exchanged.append(size)
        return 0.0 if size == 4096 else 0.01

    step = Step(1.0, ((0.2, 100), (0.205, 100), (0.2055, 100), (0.8, 100)))
    # The first starts a cycle; the next two are ready when it is over.
    assert horovod_step_s(step, exchange) == pytest.approx(1.01, abs=0.002)
    assert [size for size in exchanged if size != 4096] == [100, 200, 100]


def test_growth_is_drawn_from_its_json_with_a_dot_at_each_number_of_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[Figure] = []
    monkeypatch.setattr(figures, "_save", lambda figure, path: kept.append(figure))
    times = {"ring": {"4": 1e-5, "8": 2e-5, "64": 1e-3}, "tree": {"4": 1e-5, "4096": 2e-5}}
    figures.draw_growth({"platform": "star", "growth_s": {"4096": times}}, tmp_path / "a.png")
    (axes,) = kept[0].axes
    assert [list(line.get_xdata()) for line in axes.get_lines()] == [[4, 8, 64], [4, 4096]]
    assert all(line.get_marker() == "." for line in axes.get_lines())
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["4", "8", "64", "4,096"]


def test_the_ring_is_slower_from_where_it_stays_slower() -> None:
    peer = dict.fromkeys((4, 8, 16, 32, 64), 2.0)
    assert slower_from({4: 3.0, 8: 1.0, 16: 3.0, 32: 4.0}, peer) == 16
    assert slower_from({4: 3.0, 8: 1.0}, peer) is None


def test_no_legend_covers_a_curve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: dict[str, Figure] = {}
    monkeypatch.setattr(figures, "_save", lambda figure, path: kept.update({path.name: figure}))
    times = {"ring": {4: 1e-5, 64: 1e-3}, "recursive_doubling": {4: 1e-5, 64: 2e-5}}
    rows = [
        {"model": model, "nodes": nodes, "hvd_ext_efficiency": 1.0, "horovod_efficiency": 0.9}
        for model in ("edsr", "resnet50")
        for nodes in (1, 4)
    ]
    growth = {"platform": "star", "growth_s": {"4096": times, "1048576": times}}
    figures.draw({**growth, "steps": rows}, tmp_path)
    assert sorted(kept) == ["growth.png", "steps.png"]
    for figure in kept.values():
        figure.canvas.draw()
        legends = [*figure.legends, *(axes.get_legend() for axes in figure.axes)]
        boxes = [legend.get_window_extent() for legend in legends if legend]
        assert boxes
        assert not any(
            box.overlaps(axes.get_window_extent()) for box in boxes for axes in figure.axes
        )
