"""Plots as SVG, by hand: a line chart and a bar chart are all that is needed. No dependency, and the same bytes each time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

WIDTH, HEIGHT = 720, 360
LEFT, RIGHT, TOP, BOTTOM = 72, 24, 48, 56
COLOURS = ("#6b7280", "#2563eb", "#d97706", "#059669", "#dc2626", "#7c3aed")
Points = Sequence[tuple[float, float]]


def _frame(title: str, height: int, parts: list[str]) -> str:
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">',
            f"<title>{escape(title)}</title>",
            f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
            _text(LEFT - 56, 24, title, size=15, weight="bold"),
            *parts,
            "</svg>\n",
        ]
    )


def _text(x: float, y: float, text: str, anchor: str = "start", size: int = 12, weight: str = "normal") -> str:
    style = f'text-anchor="{anchor}" font-size="{size}" font-weight="{weight}" fill="#111827"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, colour: str = "#e5e7eb", more: str = "") -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" {more}/>'


def _ticks(low: float, high: float, log: bool) -> list[float]:
    if log:
        return [10.0**power for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]
    step = 10 ** math.floor(math.log10(high or 1))
    step = next(part * step for part in (0.1, 0.2, 0.25, 0.5, 1.0, 2.0) if high / (part * step) <= 6)
    return [number * step for number in range(math.ceil(high / step) + 1)]


def number(value: float) -> str:
    """As short as it can be read."""
    for limit, unit in ((1_000_000, "M"), (10_000, "k")):
        if abs(value) >= limit:
            return f"{value / (1000 if unit == 'k' else limit):g}{unit}"
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def lines(title: str, x: str, y: str, series: dict[str, Points], log_x: bool = False, log_y: bool = False) -> str:
    """Some curves. `x` and `y` say what the axes are; a logarithmic one has only values above 0."""
    xs = [point[0] for points in series.values() for point in points]
    ys = [point[1] for points in series.values() for point in points]
    across, up = _ticks(min(xs), max(xs), log_x), _ticks(min(ys), max(ys), log_y)
    if not log_x and len(set(xs)) <= 10:
        across = sorted(set(xs))

    def place(value: float, ticks: list[float], log: bool, begin: float, end: float) -> float:
        low, high = (math.log10(ticks[0]), math.log10(ticks[-1])) if log else (ticks[0], ticks[-1])
        at = math.log10(value) if log else value
        return begin + (end - begin) * ((at - low) / (high - low) if high > low else 0.5)

    def at_x(value: float) -> float:
        return place(value, across, log_x, LEFT, WIDTH - RIGHT)

    def at_y(value: float) -> float:
        return place(value, up, log_y, HEIGHT - BOTTOM, TOP + 24)

    parts = []
    for tick in up:
        parts += [_line(LEFT, at_y(tick), WIDTH - RIGHT, at_y(tick)), _text(LEFT - 8, at_y(tick) + 4, number(tick), "end")]
    for tick in across:
        parts += [_line(at_x(tick), HEIGHT - BOTTOM, at_x(tick), HEIGHT - BOTTOM + 5, "#111827")]
        parts += [_text(at_x(tick), HEIGHT - BOTTOM + 20, number(tick), "middle")]
    parts += [_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14, x, "middle"), _text(LEFT - 56, TOP, y)]
    legend = WIDTH - RIGHT
    for colour, (label, points) in zip(COLOURS if len(series) > 1 else COLOURS[1:], series.items(), strict=False):
        path = " ".join(f"{at_x(one):.1f},{at_y(two):.1f}" for one, two in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{at_x(one):.1f}" cy="{at_y(two):.1f}" r="3" fill="{colour}"/>' for one, two in points]
        legend -= 7 * len(label) + 30
        parts += [_line(legend, TOP - 4, legend + 16, TOP - 4, colour, 'stroke-width="3"'), _text(legend + 20, TOP, label)]
    return _frame(title, HEIGHT, parts)


def bars(title: str, groups: dict[str, dict[str, float]], marks: dict[str, float], unit: str = "x floor") -> str:
    """Bars in groups, one below the other, logarithmic from 1 on; a mark across the group where its target is."""
    tall, names = 18, 230
    height = TOP + 20 + sum(tall * len(group) + 26 for group in groups.values())
    high = max([value for group in groups.values() for value in group.values()] + [*marks.values(), 2.0])

    def at(value: float) -> float:
        return names + (WIDTH - RIGHT - 60 - names) * math.log(max(value, 1.0)) / math.log(high)

    parts, y = (
        [_line(at(1), TOP, at(1), height - 12, "#9ca3af"), _text(at(1), TOP - 4, f"1 {unit}, logarithmic", "middle")],
        float(TOP + 14),
    )
    for title_of, group in groups.items():
        parts.append(_text(LEFT - 56, y, title_of, weight="bold"))
        top = y + 6
        mark = at(marks[title_of]) if title_of in marks else 0.0
        for label, value in group.items():
            colour = COLOURS[1] if label == "interlock" else COLOURS[0]
            width = max(at(value) - at(1), 1.0)
            parts.append(f'<rect x="{at(1):.1f}" y="{y + 6:.1f}" width="{width:.1f}" height="{tall - 4}" fill="{colour}"/>')
            end = at(1) + width
            beside = mark if end <= mark < end + 36 else end  # not across the mark
            parts += [_text(names - 8, y + tall, label[:30], "end"), _text(beside + 6, y + tall, f"{value:.2f}")]
            y += tall
        if mark:
            parts.append(_line(mark, top - 2, mark, y + 4, COLOURS[4], 'stroke-width="2"'))
        y += 26
    return _frame(title, height, parts)
