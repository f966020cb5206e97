"""README's chart: the speedups of its table."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.figures.tables import MODELS, SHOWN, SPEEDUPS

_COLORS = ("C2", "0.6")


def draw(result: Mapping[str, Any], path: Path) -> None:
    """Draw the speedup of hvd_ext over each configuration of Horovod, by model.

    Args:
        result: of benchmarks.training_step.
        path: of the PNG.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    cases = [case for case in result["cases"] if case["model"] in SHOWN]
    figure, axes = plt.subplots(figsize=(8, 2.6), layout="constrained")
    width = 0.8 / len(SPEEDUPS)
    for place, ((key, peer), color) in enumerate(zip(SPEEDUPS.items(), _COLORS, strict=True)):
        found = [case[f"{key}_of_rounds"] for case in cases]
        axes.barh(
            [number + width * (place - (len(SPEEDUPS) - 1) / 2) for number in range(len(cases))],
            [one["median"] for one in found],
            width,
            xerr=[
                [one["median"] - one["low"] for one in found],
                [one["high"] - one["median"] for one in found],
            ],
            color=color,
            edgecolor="0.4",
            ecolor="0.2",
            label=f"over {peer}",
        )
    axes.axvline(1, color="0.2", linewidth=1)
    axes.set_yticks(range(len(cases)), [MODELS[case["model"]] for case in cases])
    axes.invert_yaxis()
    axes.set_xlim(0)
    axes.set_xlabel("speedup of hvd_ext (1: as fast)")
    axes.xaxis.grid(visible=True, color="0.85")
    axes.set_axisbelow(True)
    axes.set_title(
        f"Training steps on {result['size']} ranks; lines: middle half of the rounds", fontsize=10
    )
    axes.legend(fontsize=8, loc="lower right")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)
