"""Advice on workers in a report: measured points, the law through them, and how sure it is."""

from collections.abc import Sequence
from html import escape
from math import log2

from gridmill.model.advice import Advice, Forecast, Measured
from gridmill.model.noun import dataclass
from gridmill.report.charts import Point, svg, ticks

_WIDE, _HIGH, _LEFT, _BOTTOM, _TOP = 920.0, 300.0, 56.0, 34.0, 26.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scale:
    """Workers across, each doubling as wide as the others; speed-up upwards, from nothing."""

    most: int
    top: float

    def place(self, workers: float, speedup: float) -> Point:
        """Where a point is drawn."""
        x = _LEFT + log2(workers) / max(1.0, log2(self.most)) * (_WIDE - _LEFT - 20)
        y = _TOP + (1 - speedup / self.top) * (_HIGH - _TOP - _BOTTOM)
        return x, y


def advice_chart(found: Advice) -> str:
    """Speed-up by workers as SVG: band, law, perfect speed-up, measured points."""
    lines = found.forecasts
    highest = max([line.high for line in lines] + [one.speedup for one in found.measured])
    scale = _Scale(most=max(line.workers for line in lines), top=highest * 1.08)
    parts = [_level(scale, value) for value in ticks(0.0, scale.top)]
    parts += [_number(scale, line.workers) for line in lines]
    parts += [_band(scale, lines), _law(scale, lines), _perfect(scale)]
    parts += [_point(scale, one) for one in found.measured]
    parts.append(_worth(scale, found))
    return svg(_WIDE, _HIGH, parts)


def _level(scale: _Scale, value: float) -> str:
    y = scale.place(1, value)[1]
    return (
        f'<line class="grid" x1="{_LEFT}" x2="{_WIDE - 10}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text class="axis" x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:g} x</text>'
    )


def _number(scale: _Scale, workers: int) -> str:
    x = scale.place(workers, 0)[0]
    return f'<text class="axis" x="{x:.1f}" y="{_HIGH - _BOTTOM + 18}" text-anchor="middle">{workers}</text>'


def _path(points: Sequence[Point]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _band(scale: _Scale, lines: Sequence[Forecast]) -> str:
    there = [scale.place(line.workers, line.high) for line in lines]
    back = [scale.place(line.workers, line.low) for line in reversed(lines)]
    return f'<polygon points="{_path([*there, *back])}" fill="var(--c1)" opacity="0.15"/>'


def _law(scale: _Scale, lines: Sequence[Forecast]) -> str:
    points = _path([scale.place(line.workers, line.speedup) for line in lines])
    return f'<polyline points="{points}" fill="none" stroke="var(--c1)" stroke-width="1.8"/>'


def _perfect(scale: _Scale) -> str:
    """Twice the workers, twice the speed: as far as it is within the picture."""
    numbers = [2 ** (step / 4) for step in range(4 * 16) if 2 ** (step / 4) <= min(scale.most, scale.top)]
    points = _path([scale.place(number, number) for number in numbers])
    return f'<polyline points="{points}" fill="none" stroke="var(--c2)" stroke-dasharray="5 4"/>'


def _point(scale: _Scale, one: Measured) -> str:
    x, y = scale.place(one.workers, one.speedup)
    part = f", a probe of {one.share:.0%}" if one.probe else ""
    note = escape(f"{one.attempt_id}: {one.workers} workers, {one.speedup:.2f} x{part}")
    fill = "none" if one.probe else "var(--c1)"
    return (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="{fill}" stroke="var(--c1)" stroke-width="1.6">'
        f"<title>{note}</title></circle>"
    )


def _worth(scale: _Scale, found: Advice) -> str:
    line = found.forecast(found.worth)
    if line is None:
        return ""
    x, y = scale.place(line.workers, line.speedup)
    return (
        f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{y:.1f}" y2="{_HIGH - _BOTTOM}"/>'
        f'<text class="axis" x="{x:.1f}" y="{y - 10:.1f}" text-anchor="middle">worth paying for</text>'
    )
