"""README's chart: training speed with each exchange."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.figures.tables import ARMS, MODELS, SHOWN

_DRAWN = {"horovod": "0.75", "horovod_by_hand": "0.55", "hvd_ext": "C2", "alone": "0.9"}


def draw(result: Mapping[str, Any], path: Path) -> None:
    """Draw the speed of each configuration over that of Horovod's defaults, by model.

    Args:
        result: of benchmarks.training_step.
        path: of the PNG.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    cases = [case for case in result["cases"] if case["model"] in SHOWN]
    figure, axes = plt.subplots(figsize=(8, 3.2), layout="constrained")
    width = 0.8 / len(_DRAWN)
    for place, (arm, colour) in enumerate(_DRAWN.items()):
        # A time that is low is a speed that is high.
        times = [case["arms"][arm]["step_ms"] for case in cases]
        of_horovod = [case["arms"]["horovod"]["step_ms"]["median"] for case in cases]
        speed, low, high = (
            [reference / time[end] for reference, time in zip(of_horovod, times, strict=True)]
            for end in ("median", "high", "low")
        )
        halves = [
            [s - least for s, least in zip(speed, low, strict=True)],
            [most - s for s, most in zip(speed, high, strict=True)],
        ]
        positions = [
            number + width * (place - (len(_DRAWN) - 1) / 2) for number in range(len(cases))
        ]
        axes.bar(
            positions,
            speed,
            width,
            yerr=halves,
            color=colour,
            edgecolor="0.4",
            ecolor="0.2",
            label=ARMS[arm],
        )
    axes.set_xticks(range(len(cases)), [MODELS[case["model"]] for case in cases])
    axes.set_ylabel("speed, Horovod = 1")
    axes.yaxis.grid(visible=True, color="0.85")
    axes.set_axisbelow(True)
    axes.set_title(
        f"Training on {result['size']} ranks; lines: middle half of the steps", fontsize=10
    )
    axes.margins(y=0.15)
    axes.legend(ncols=len(_DRAWN), fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.12))
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)
