"""Charts as inline SVG: a few kinds, in the page's own colors, without scripts.

Colors are CSS variables of the page (--c1, --c2, ...), so a figure follows its light and
dark mode; every mark has a tooltip. All text is escaped. Widths are in units of a phone's pixels,
and there is room for letters of 14 units, which the page uses on a phone, so that labels stay
legible at any width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape

from hvprof.reporters.page.scales import Axis as Axis
from hvprof.reporters.page.scales import Format, Linear, Log, scale_of

WIDTH = 400
_ROW, _LEGEND, _AXIS = 26, 24, 36
_CHARACTER = 8.2  # width of one that is 14 units high
# Longer names stand above their bars; none is longer than fits there.
_BESIDE, _ABOVE = 14, 34
_TITLE = 14  # of an upright axis, above it
# Few bars are drawn wider, so that figures side by side are about as high.
_BARS_HEIGHT, _WIDEST_ROW = 150, 38
# Opacity of a heat map's longest time: numbers stay legible on it, in light and dark.
DARKEST_SHADE = 0.5


@dataclass(frozen=True, slots=True)
class Series:
    """One color's values; None where there is none."""

    name: str
    values: Sequence[float | None]
    color: int = 1


@dataclass(frozen=True, slots=True)
class Curve:
    """Points (x, y), sorted by x, as a line, as dots, or both; `band` is (x, low, high)."""

    name: str
    points: Sequence[tuple[float, float]]
    color: int = 1
    line: bool = True
    dots: bool = True
    band: Sequence[tuple[float, float, float]] = ()


@dataclass(slots=True)
class Canvas:
    """A drawing to which marks are added; `done` ends it."""

    width: float
    height: float
    parts: list[str] = field(default_factory=list)

    def text(self, x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> None:
        self.parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">'
            f"{escape(words)}</text>"
        )

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str = "grid") -> None:
        where = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
        self.parts.append(f'<line {where} class="{kind}"/>')

    def rect(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        color: int,
        tip: str,
        alpha: float = 1,
    ) -> None:
        opacity = "" if alpha == 1 else f' fill-opacity="{alpha:.3f}"'
        where = f'x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" height="{max(height, 0):.1f}"'
        self.parts.append(
            f'<rect {where} class="f{color}"{opacity}><title>{escape(tip)}</title></rect>'
        )

    def dot(self, x: float, y: float, color: int, tip: str) -> None:
        where = f'cx="{x:.1f}" cy="{y:.1f}" r="4"'
        self.parts.append(f'<circle {where} class="f{color}"><title>{escape(tip)}</title></circle>')

    def path(self, points: Sequence[tuple[float, float]], kind: str, *, closed: bool) -> None:
        course = "L".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.parts.append(f'<path d="M{course}{"Z" if closed else ""}" class="{kind}"/>')

    def legend(self, names: Sequence[tuple[str, int]]) -> None:
        """The legend, in the height of `_legend_height`."""
        for (x, y), (name, color) in zip(_legend_places(names), names, strict=True):
            where = f'x="{x:.1f}" y="{y + 2:.1f}"'
            self.parts.append(f'<rect {where} width="11" height="11" rx="2" class="f{color}"/>')
            self.text(x + 16, y + 12, name, "muted")

    def done(self, label: str) -> str:
        return (
            f'<svg viewBox="0 0 {self.width:g} {self.height:g}" role="img" '
            f'aria-label="{escape(label, quote=True)}">{"".join(self.parts)}</svg>'
        )


def _legend_places(names: Sequence[tuple[str, int]]) -> list[tuple[float, float]]:
    """Return where each name begins; names without room are in the next line."""
    places, x, y = [], 0.0, 0.0
    for name, _ in names:
        width = 16 + len(name) * _CHARACTER
        if x and x + width > WIDTH:
            x, y = 0.0, y + _LEGEND - 4
        places.append((x, y))
        x += width + 14
    return places


def _legend_height(names: Sequence[tuple[str, int]]) -> float:
    return _LEGEND + _legend_places(names)[-1][1] if names else 4


def bars(label: str, rows: Sequence[str], series: Sequence[Series], form: Format) -> str:
    """Horizontal bars, one for each row, the series stacked; the sum is written behind."""
    sums = [sum(one.values[index] or 0 for one in series) for index in range(len(rows))]
    longest = max(map(len, rows), default=0)
    above = longest > _BESIDE
    left = 0.0 if above else 8 + _CHARACTER * longest
    room = WIDTH - left - 8 - _CHARACTER * max((len(form(total)) for total in sums), default=0)
    most = max(sums, default=0) or 1
    names = [(one.name, one.color) for one in series] if len(series) > 1 else []
    top = _legend_height(names)
    title = 18 if above else 0
    pitch = title + min(_WIDEST_ROW, max(_ROW, _BARS_HEIGHT / max(len(rows), 1) - title))
    thick = pitch - title - 8
    canvas = Canvas(WIDTH, top + pitch * len(rows) + 4)
    canvas.legend(names)
    for index, row in enumerate(rows):
        y = top + pitch * index
        if above:
            canvas.text(0, y + 15, shorten(row, _ABOVE))
        middle = y + title + 4 + thick / 2
        if not above:
            canvas.text(left - 8, middle + 4, row, anchor="end")
        x = left
        for one in series:
            value = one.values[index]
            if value:
                width = room * value / most
                tip = f"{row}, {one.name}: {form(value)}"
                canvas.rect(x, middle - thick / 2, width, thick, one.color, tip)
                x += width
        canvas.text(x + 6, middle + 4, form(sums[index]), "muted")
    return canvas.done(label)


def columns(
    label: str, names: Sequence[str], series: Sequence[Series], axis: Axis, below: str
) -> str:
    """Upright stacked bars side by side, for many things of a kind, such as ranks."""
    sums = [sum(one.values[index] or 0 for one in series) for index in range(len(names))]
    legend = [(one.name, one.color) for one in series]
    top = _legend_height(legend) + _TITLE
    height = top + 200
    bottom = height - _AXIS
    scale = Linear(0, max(sums, default=0) or 1, bottom, top + 6)
    left = _room_for(scale, axis)
    canvas = Canvas(WIDTH, height)
    canvas.legend(legend)
    _grid(canvas, scale, axis, left, top)
    pitch = (WIDTH - left - 6) / max(len(names), 1)
    gap = min(pitch * 0.2, 6)
    for index, name in enumerate(names):
        y = scale(0)
        for one in series:
            value = one.values[index]
            if value:
                high = y - (scale(0) - scale(value))
                tip = f"{name}, {one.name}: {axis.form(value)}"
                width = min(pitch - gap, 60)
                x = left + pitch * index + (pitch - width) / 2
                canvas.rect(x, high, width, y - high, one.color, tip)
                y = high
    every = max(1, math.ceil(len(names) / max(1, int((WIDTH - left) / _wide(names)))))
    for index in range(0, len(names), every):
        canvas.text(left + pitch * (index + 0.5), bottom + 15, names[index], "muted", "middle")
    canvas.text((left + WIDTH) / 2, height - 3, below, "muted", "middle")
    return canvas.done(label)


def curves(label: str, lines: Sequence[Curve], x_axis: Axis, y_axis: Axis) -> str:
    """Lines, dots and bands over two axes, each linear or logarithmic."""
    xs = [x for one in lines for x, _ in one.points]
    ys = [y for one in lines for _, y in one.points]
    ys += [y for one in lines for _, *edges in one.band for y in edges]
    legend = [(one.name, one.color) for one in lines] if len(lines) > 1 else []
    top = _legend_height(legend) + _TITLE
    height = top + 216
    bottom = height - _AXIS - 4
    upward = scale_of(y_axis, ys, bottom, top + 6)
    left = _room_for(upward, y_axis)
    across = scale_of(x_axis, xs, left + 8, WIDTH - 14)
    canvas = Canvas(WIDTH, height)
    canvas.legend(legend)
    _grid(canvas, upward, y_axis, left, top)
    previous = -math.inf
    for tick in across.ticks():
        words = _tick(x_axis, tick)
        x, half = across(tick), len(words) * _CHARACTER / 2
        if x - half > previous:
            canvas.text(x, bottom + 15, words, "muted", "middle")
            canvas.line(x, bottom, x, bottom + 3, "axis")
            previous = x + half + 4
    canvas.text((left + WIDTH) / 2, height - 4, x_axis.title, "muted", "middle")
    for one in lines:
        if one.band:
            low = [(across(x), upward(y)) for x, y, _ in one.band]
            high = [(across(x), upward(y)) for x, _, y in reversed(one.band)]
            canvas.path([*low, *high], f"b{one.color}", closed=True)
        if one.line and len(one.points) > 1:
            places = [(across(x), upward(y)) for x, y in one.points]
            canvas.path(places, f"s{one.color}", closed=False)
        if one.dots:
            for x, y in one.points:
                tip = f"{one.name}, {x_axis.form(x)}: {y_axis.form(y)}"
                canvas.dot(across(x), upward(y), one.color, tip)
    return canvas.done(label)


def heat(
    label: str,
    rows: Sequence[str],
    names: Sequence[str],
    values: Sequence[Sequence[float]],
    scaled: Callable[[Sequence[float]], tuple[Sequence[str], str]],
    below: str,
) -> str:
    """A grid of shades; values[row][column], each row shaded by its own largest value.

    `scaled` converts a row's values to numbers of one unit, and returns the unit too. The numbers
    stand in the cells where they fit, else their minimum and maximum next to the row's name.
    """
    pitch = WIDTH / max(len(names), 1)
    labels = [scaled(row) for row in values]
    longest = max((len(number) for numbers, _ in labels for number in numbers), default=0)
    fits = longest * _CHARACTER + 4 <= pitch
    title, height = 18, 26
    canvas = Canvas(WIDTH, (title + height) * len(rows) + 38)
    for index, (row, (numbers, unit)) in enumerate(zip(rows, labels, strict=True)):
        y = (title + height) * index + title
        canvas.text(0, y - 4, shorten(row, _ABOVE - 10))
        order = sorted(range(len(names)), key=values[index].__getitem__)
        spread = f"{numbers[order[0]]} to {numbers[order[-1]]} {unit}"
        canvas.text(WIDTH, y - 4, unit if fits else spread, "muted", "end")
        most = max(values[index], default=0) or 1
        for column, value in enumerate(values[index]):
            # The shade is the square of the value, so that only values far above the rest stand
            # out.
            share = (value / most) ** 2 if value > 0 else 0
            tip = f"{row}, rank {names[column]}: {numbers[column]} {unit}"
            x = pitch * column
            width = pitch - (2 if pitch > 8 else 0)
            shade = 0.06 + (DARKEST_SHADE - 0.06) * share
            canvas.rect(x, y, width, height - 4, 1, tip, shade)
            if fits:
                canvas.text(x + width / 2, y + 16, numbers[column], anchor="middle")
    bottom = (title + height) * len(rows) + 14
    every = max(1, math.ceil(len(names) / max(1, int(WIDTH / _wide(names)))))
    for column in range(0, len(names), every):
        canvas.text(pitch * (column + 0.5), bottom, names[column], "muted", "middle")
    canvas.text(WIDTH / 2, bottom + 18, below, "muted", "middle")
    return canvas.done(label)


def matrix(
    label: str, names: Sequence[str], values: Sequence[Sequence[float]], form: Format
) -> str:
    """A square of shades; values[row][column] is sent from the row to the column."""
    left, top, pitch = _wide(names) + 4, 38.0, (WIDTH - _wide(names) - 4) / len(names)
    canvas = Canvas(WIDTH, top + pitch * len(names) + 4)
    most = max(value for row in values for value in row) or 1
    across, down = math.ceil(_wide(names) / pitch), math.ceil(16 / pitch)
    canvas.text((left + WIDTH) / 2, 12, "to", "muted", "middle")
    canvas.text(0, top - 6, "from", "muted")
    for index, name in enumerate(names):
        if index % across == 0:
            canvas.text(left + pitch * (index + 0.5), top - 6, name, "muted", "middle")
        if index % down == 0:
            canvas.text(left - 6, top + pitch * (index + 0.5) + 5, name, "muted", "end")
        for column, value in enumerate(values[index]):
            tip = f"{name} to {names[column]}: {form(value)}"
            shade = 0.15 + 0.85 * math.sqrt(value / most) if value else 0.04
            x, y, side = left + pitch * column, top + pitch * index, pitch - min(2, pitch / 8)
            canvas.rect(x, y, side, side, 1, tip, shade)
    return canvas.done(label)


def intervals(
    label: str,
    rows: Sequence[tuple[str, float, float | None, float | None, int]],
    form: Format,
) -> str:
    """A dot and its interval for each row around 0: (name, value, low, high, color)."""
    left = 12 + _CHARACTER * max((len(row[0]) for row in rows), default=0)
    known = [value for _, *three, _ in rows for value in three if value is not None]
    # One very wide interval must not press all others into a point.
    low, high = max(min([*known, -5]), -150), min(max([*known, 5]), 100)
    across = Linear(low, high, left + 10, WIDTH - 16)
    canvas = Canvas(WIDTH, _ROW * len(rows) + 42)
    bottom = _ROW * len(rows) + 6
    for tick in across.ticks():
        canvas.line(across(tick), 2, across(tick), bottom, "axis" if tick == 0 else "grid")
        canvas.text(across(tick), bottom + 14, form(tick), "muted", "middle")
    for index, (name, value, lower, upper, color) in enumerate(rows):
        y = _ROW * index + 15
        canvas.text(left - 8, y + 4, name, anchor="end")
        tip = f"{name}: {form(value)}"
        if lower is not None and upper is not None:
            ends = (across(max(lower, low)), across(min(upper, high)))
            canvas.rect(ends[0], y - 2, max(ends[1] - ends[0], 1), 4, color, tip, 0.55)
        canvas.dot(across(min(max(value, low), high)), y, color, tip)
    canvas.text(left + 10, bottom + 31, "◂ slower", "muted")
    canvas.text(WIDTH - 16, bottom + 31, "faster ▸", "muted", "end")
    return canvas.done(label)


def shorten(text: str, most: int) -> str:
    """The text, its middle left out if it is longer than `most` characters."""
    half = (most - 1) // 2
    return text if len(text) <= most else f"{text[:half]}…{text[-half:]}"


def _wide(names: Sequence[str]) -> float:
    return 8 + _CHARACTER * max(map(len, names), default=1)


def _room_for(scale: Linear | Log, axis: Axis) -> float:
    """Width of the numbers of an upright axis."""
    return 10 + _CHARACTER * max((len(_tick(axis, tick)) for tick in scale.ticks()), default=1)


def _tick(axis: Axis, tick: float) -> str:
    return axis.form(tick) if tick else "0"


def _grid(canvas: Canvas, scale: Linear | Log, axis: Axis, left: float, top: float) -> None:
    """The lines of an upright axis, and the name of its quantity above them."""
    for tick in scale.ticks():
        canvas.line(left, scale(tick), canvas.width - 4, scale(tick))
        canvas.text(left - 6, scale(tick) + 4, _tick(axis, tick), "muted", "end")
    if axis.title:
        canvas.text(0, top - 2, axis.title, "muted")
