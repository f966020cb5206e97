"""A chart of what ran when: a lane for each part of a step, as inline SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hvd_ext.units import format_seconds
from hvprof.reporters.page.scales import Linear
from hvprof.reporters.page.svg import WIDTH, Canvas

_HEADING, _LANE, _AXIS, _NAMES = 22, 20, 26, 84
# Pieces that are closer than this cannot be told apart.
_LEAST = 0.4

Pieces = Sequence[tuple[float, float]]


def lanes(
    label: str,
    groups: Sequence[tuple[str, float, Mapping[str, Pieces]]],
    colors: Mapping[str, int],
) -> str:
    """Draw groups of lanes, all on one scale of time.

    Args:
        label: label of the chart.
        groups: heading, seconds shown, and by part its intervals in s from the beginning.
        colors: colors of the parts, in the order of the lanes; parts without intervals are left
            out.
    """
    shown = [part for part in colors if any(busy.get(part) for _, _, busy in groups)]
    across = Linear(0, max((time_s for _, time_s, _ in groups), default=1), _NAMES, WIDTH - 22)
    height = (_HEADING + _LANE * len(shown)) * len(groups) + _AXIS
    canvas = Canvas(WIDTH, height)
    for tick in across.ticks():
        canvas.line(across(tick), _HEADING, across(tick), height - _AXIS)
        anchor = "middle" if tick else "start"
        words = format_seconds(tick) if tick else "0"
        canvas.text(across(tick), height - 8, words, "muted", anchor)
    y = 0.0
    for heading, time_s, busy in groups:
        canvas.text(0, y + 15, heading)
        y += _HEADING
        for part in shown:
            canvas.text(_NAMES - 8, y + 14, part, "muted", "end")
            canvas.line(_NAMES, y + _LANE - 3, across(time_s), y + _LANE - 3, "axis")
            for begin_s, end_s in _visible(busy.get(part, ()), _LEAST * across.high / WIDTH):
                left, right = across(begin_s), across(end_s)
                tip = f"{part}: {format_seconds(end_s - begin_s)} at {format_seconds(begin_s)}"
                canvas.rect(left, y + 3, max(right - left, _LEAST), _LANE - 7, colors[part], tip)
            y += _LANE
    return canvas.done(label)


def _visible(pieces: Pieces, gap_s: float) -> list[tuple[float, float]]:
    """The pieces, where pieces closer than a gap are joined."""
    joined: list[tuple[float, float]] = []
    for begin_s, end_s in pieces:
        if joined and begin_s - joined[-1][1] < gap_s:
            begin_s, _ = joined.pop()
        joined.append((begin_s, end_s))
    return joined
