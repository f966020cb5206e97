"""The picture and the table of simulated allreduces by the number of ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.figures.markdown import number, origin, table
from hvd_ext.units import format_bytes

# By message_bytes: the ring is compared with them.
_PEERS = {4 << 10: "double_tree", 1 << 20: "recursive_doubling", 100 << 20: "rabenseifner"}


def growth(results: Mapping[str, Any]) -> str:
    """The picture, which algorithm is the fastest from which number of ranks on, and the times."""
    result = results["simulated_growth"]
    times = {
        int(size): {
            name: {int(count): time_s for count, time_s in found.items()}
            for name, found in by_name.items()
        }
        for size, by_name in result["growth_s"].items()
    }
    counts = sorted({count for one in times.values() for found in one.values() for count in found})
    rows = [
        (
            f"{format_bytes(size)}, `{name}`",
            *(number(1e6 * found[count]) if count in found else "" for count in counts),
        )
        for size, by_name in times.items()
        for name, found in by_name.items()
    ]
    slopes = result["slopes"]
    doublings = [1e6 * one["s_per_doubling"] for name, one in slopes.items() if name != "ring"]
    fastest = "; ".join(
        f"for {format_bytes(int(size))} `{found[0][1]}`"
        + "".join(f", from {count} ranks on `{name}`" for count, name in found[1:])
        for size, found in result["fastest"].items()
    )
    slower = ", ".join(
        f"than `{peer}` from {slower_from(times[size]['ring'], times[size][peer])} ranks on for "
        f"{format_bytes(size)}"
        for size, peer in _PEERS.items()
    )
    return "\n\n".join(
        (
            "![Simulated time of 4 KiB, 1 MiB and 100 MiB over the number of ranks, by algorithm]"
            "(../images/simulated-growth.png)",
            f"A {result['platform']}, one rank on each node. For 4 KiB the ring takes "
            f"{number(1e6 * slopes['ring']['s_per_rank'])} us more for each rank, and the others "
            f"{number(min(doublings))} to {number(max(doublings))} us more for twice the ranks. "
            f"The fastest on {counts[0]} ranks and more: {fastest}. The ring is slower {slower}.",
            table(("us, by ranks", *(f"{count:,}" for count in counts)), rows),
            f"Blank: refused as too large to simulate. {origin(result)}",
        )
    )


def slower_from(times_s: Mapping[int, float], peer_s: Mapping[int, float]) -> int | None:
    """Return the smallest size from which all times are longer than a peer's, or None."""
    found = None
    for count in sorted(times_s.keys() & peer_s.keys(), reverse=True):
        if times_s[count] <= peer_s[count]:
            break
        found = count
    return found
