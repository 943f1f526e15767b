"""Charts as SVG, without any library and without a script. Colours are classes; the page says what they look like.

Every chart says in words what it shows (`<title>`, `<desc>`), and every point in a tip of its own. The numbers
themselves stand in a table beside it, which is the page's business.
"""

import math
from collections.abc import Callable, Sequence

from msgspec import Struct

from agentpost.pipeline.report.words import hour_text, in_html

__all__ = ["Line", "bars", "lines"]

_WIDTH, _HEIGHT = 380, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 10, 10, 24
# 1 ms to 100 d: where a person would put a line.
_TIMES_US = tuple(
    unit * count
    for unit, counts in (
        (1000, (1, 10, 100)),
        (10**6, (1, 10)),
        (60 * 10**6, (1, 10)),
        (3600 * 10**6, (1, 10, 100, 2400)),
    )
    for count in counts
)


class Line(Struct, frozen=True):
    """One line of a chart: its name, its class (`a` to `e`), and a value or nothing for each hour."""

    name: str
    look: str
    values: tuple[float | None, ...]


def lines(
    title: str,
    hours: Sequence[int],
    series: Sequence[Line],
    *,
    text: Callable[[float], str],
    is_time: bool = False,
    mark: tuple[float, str] | None = None,
    is_area: bool = False,
) -> str:
    """Lines over hours. `mark` is a value with a name that is drawn across, such as an objective.

    Lengths of time (`is_time`) are drawn on a logarithmic scale: milliseconds and hours in one picture.
    """
    known = [value for line in series for value in line.values if value is not None]
    if not known or not hours:
        return _nothing(title)
    scale = _time_scale(known, mark) if is_time else _linear_scale(known, mark)
    xs = [_LEFT + (_WIDTH - _LEFT - _RIGHT) * (n + 0.5) / len(hours) for n in range(len(hours))]
    parts = [_grid(scale, text), _hours(hours, xs)]
    if mark is not None:
        y = scale.y(mark[0])
        parts.append(f'<line class="mark" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="mark-name" x="{_WIDTH - _RIGHT}" y="{y - 4:.1f}">{in_html(mark[1])}</text>')
    for line in series:
        parts += [_path(line, xs, scale, is_area=is_area)]
    width = (_WIDTH - _LEFT - _RIGHT) / len(hours)
    for place, hour in enumerate(hours):
        said = ", ".join(f"{line.name} {text(value)}" for line in series if (value := line.values[place]) is not None)
        parts.append(
            f'<rect class="tip" x="{xs[place] - width / 2:.1f}" y="{_TOP}" width="{width:.1f}"'
            f' height="{_HEIGHT - _TOP - _BOTTOM}"><title>{hour_text(hour)}: '
            f"{in_html(said or 'nothing')}</title></rect>"
        )
    last = ", ".join(
        f"{line.name} {text(max(v for v in line.values if v is not None))}" for line in series if any(line.values)
    )
    return _svg(title, f"{len(hours)} hours from {hour_text(hours[0])}. Highest: {last or 'none'}.", parts)


def bars(title: str, rows: Sequence[tuple[str, float, str]], *, look: str = "a") -> str:
    """Horizontal bars: a name, a value, and the value in words. HTML, so that names wrap and stay readable."""
    if not rows:
        return f'<p class="none">{in_html(title)}: nothing to show.</p>'
    top = max(value for _, value, _ in rows) or 1
    items = "".join(
        f'<li><span class="bar-name">{in_html(name)}</span><span class="bar-track" aria-hidden="true">'
        f'<span class="bar {look}" style="width:{max(0.5, value / top * 100):.1f}%"></span></span>'
        f'<span class="bar-value">{in_html(said)}</span></li>'
        for name, value, said in rows
    )
    return f'<ul class="bars" aria-label="{in_html(title)}">{items}</ul>'


class _Scale(Struct, frozen=True):
    low: float
    high: float
    ticks: tuple[float, ...]
    log: bool

    def y(self, value: float) -> float:
        low, high, at = self.low, self.high, value
        if self.log:
            low, high, at = math.log10(low), math.log10(high), math.log10(max(value, self.low))
        share = (at - low) / (high - low) if high > low else 0
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * max(0.0, min(1.0, share))


def _time_scale(values: Sequence[float], mark: tuple[float, str] | None) -> _Scale:
    top = max([*values, mark[0]] if mark else values)
    above = [tick for tick in _TIMES_US if tick >= top] or [_TIMES_US[-1]]
    below = [tick for tick in _TIMES_US if tick <= min(values) and tick < above[0]] or [_TIMES_US[0]]
    ticks = [tick for tick in _TIMES_US if below[-1] <= tick <= above[0]]
    return _Scale(below[-1], above[0], tuple(ticks[:: max(1, math.ceil(len(ticks) / 7))]), True)


def _linear_scale(values: Sequence[float], mark: tuple[float, str] | None) -> _Scale:
    top = max([*values, mark[0]] if mark else values) or 1
    step = 10 ** math.floor(math.log10(top))
    step = next(step * part for part in (0.25, 0.5, 1, 2, 5, 10) if top / (step * part) <= 4)
    count = math.ceil(top / step)
    return _Scale(0, count * step, tuple(n * step for n in range(count + 1)), False)


def _grid(scale: _Scale, text: Callable[[float], str]) -> str:
    parts: list[str] = []
    for tick in scale.ticks:
        y = scale.y(tick)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{_LEFT - 6}" y="{y + 3.5:.1f}">{in_html(text(tick))}</text>')
    return "".join(parts)


def _hours(hours: Sequence[int], xs: Sequence[float]) -> str:
    places = sorted({0, len(hours) // 2, len(hours) - 1}) if len(hours) > 2 else range(len(hours))
    anchors = {0: "start", len(hours) - 1: "end"}
    return "".join(
        f'<text class="hour" x="{xs[n]:.1f}" y="{_HEIGHT - 7}"'
        f' text-anchor="{anchors.get(n, "middle")}">{hour_text(hours[n])}</text>'
        for n in places
    )


def _path(line: Line, xs: Sequence[float], scale: _Scale, *, is_area: bool) -> str:
    runs: list[list[tuple[float, float]]] = [[]]
    for x, value in zip(xs, line.values, strict=True):
        if value is None:
            runs.append([])
        else:
            runs[-1].append((x, scale.y(value)))
    parts: list[str] = []
    for run in runs:
        if len(run) == 1:
            parts.append(f'<circle class="dot {line.look}" cx="{run[0][0]:.1f}" cy="{run[0][1]:.1f}" r="2.5"/>')
        elif run:
            path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in run)
            if is_area:
                floor = _HEIGHT - _BOTTOM
                parts.append(
                    f'<path class="area {line.look}" d="{path}L{run[-1][0]:.1f} {floor}L{run[0][0]:.1f} {floor}Z"/>'
                )
            parts.append(f'<path class="line {line.look}" d="{path}"/>')
    return "".join(parts)


def _svg(title: str, said: str, parts: Sequence[str]) -> str:
    name = "".join(letter if letter.isalnum() else "-" for letter in title.lower())
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-labelledby="{name}-t {name}-d">'
        f'<title id="{name}-t">{in_html(title)}</title><desc id="{name}-d">{in_html(said)}</desc>{"".join(parts)}</svg>'
    )


def _nothing(title: str) -> str:
    return f'<p class="none">{in_html(title)}: nothing to show.</p>'
