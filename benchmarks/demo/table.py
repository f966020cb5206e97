"""The demo's arms, and the one table of what they gave."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich import box
from rich.panel import Panel
from rich.table import Table

from hvd_ext.system import freed_memory
from testbed import ranks, timing

# What hvd.init() does for hvd_ext, and the ranks without exchange for themselves.
_BY_HAND = {"OMPI_MCA_mpi_yield_when_idle": "1", **freed_memory.VARIABLES}


@dataclass(frozen=True)
class Arm:
    """One way to train.

    Attributes:
        title: heads its column.
        exchange: of the trainers.
        variables: set for its ranks.
    """

    title: str
    exchange: str
    variables: Mapping[str, str] = field(default_factory=dict)

    def environment(self) -> dict[str, str]:
        """The arm's own: what the user has set of waiting and of malloc is left out."""
        usual = {
            name: value
            for name, value in ranks.environment().items()
            if name not in _BY_HAND and not name.startswith("MALLOC_")
        }
        return usual | dict(self.variables)


ARMS = {
    "horovod": Arm("Horovod", "horovod"),
    "horovod_by_hand": Arm("Horovod, tuned", "horovod", _BY_HAND),
    "hvd_ext": Arm("hvd_ext", "hvd_ext"),
    "none": Arm("no exchange", "none"),
}
PEERS = ("horovod", "horovod_by_hand")


@dataclass(frozen=True)
class Row:
    """A measurement of every configuration.

    Attributes:
        what: was measured.
        unit: of the samples; a rate "/s" is better the higher it is, a time the lower.
        samples: of each arm, one a round.
    """

    what: str
    unit: str
    samples: Mapping[str, Sequence[float]]

    def gained(self, peer: str) -> float:
        """How many times as fast as the peer hvd_ext is, by medians."""
        two = (self.samples[peer], self.samples["hvd_ext"])
        return 1 / timing.ratio(*two) if self.unit.endswith("/s") else timing.ratio(*two)

    def as_json(self) -> dict[str, Any]:
        return {
            "what": self.what,
            "unit": self.unit,
            **{arm: timing.summary(samples) for arm, samples in self.samples.items()},
            **{f"gained_vs_{peer}": self.gained(peer) for peer in PEERS},
        }


def draw(rows: Sequence[Row], caption: str) -> Table:
    """Medians of the arms, a column each, and what hvd_ext gains on the peers."""
    # Fits a terminal of 80 columns.
    table = Table(
        caption=caption,
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    table.add_column("", min_width=18)
    titles = [arm.title for arm in ARMS.values()]
    for heading in (*titles, *(f"speedup over {ARMS[peer].title}" for peer in PEERS)):
        table.add_column("\n".join(textwrap.wrap(heading, 9)), justify="right")
    for row in rows:
        medians = (timing.summary(row.samples[arm])["median"] for arm in ARMS)
        gains = (f"{row.gained(peer):.2f} x" for peer in PEERS)
        table.add_row(f"{row.what}, {row.unit}", *map(_digits, medians), *gains)
    return table


def conclusion(summary: Mapping[str, Any], output: Path) -> Panel:
    """The quality of the networks, and the place of the files."""
    bicubic, edsr = summary["bicubic_psnr_db"], summary["edsr_psnr_db"]
    return Panel.fit(
        f"EDSR reaches {edsr:.2f} dB (RGB) on photographs it has not seen, "
        f"{edsr - bicubic:.2f} dB more than bicubic.\n"
        f"ResNet reads {summary['digits_accuracy']:.1%} of digits it has not seen.\n"
        f"Horovod and hvd_ext gave the same losses and metrics to the last bit.\n"
        f"Picture: {output}/upscaled.png    Tables: {output}/comparison_*.txt\n"
        f"All numbers, with their spread: {output}/summary.json\n"
        f"Next: hvprof report {output}/recordings/edsr_hvd_ext/1"
    )


def _digits(value: float) -> str:
    """Three digits at least."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
