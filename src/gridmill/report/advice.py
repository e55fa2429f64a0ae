"""Advice on workers in a report: measured points, the law through them, and how sure it is."""

from collections.abc import Sequence
from math import log2

from gridmill.model.advice import Advice, Forecast
from gridmill.report.charts import Axes, Point, Scale, dot, figure, tick_texts, ticks

LEAST_SECONDS, LEAST_SAVING = 10.0, 0.2
"""Advice is shown on jobs that take at least so long, where another number of workers saves at least that
share."""


def is_worth_it(found: Advice) -> bool:
    """Whether another number of workers than that of the last attempt is worth a reader's time."""
    if not found.measured:
        return False
    last, better = found.measured[-1], found.forecast(found.worth)
    if better is None or last.workers == found.worth:
        return False
    return last.seconds >= LEAST_SECONDS and last.seconds - better.seconds >= LEAST_SAVING * last.seconds


def advice_chart(found: Advice) -> str:
    """Speed-up by workers: band, law, perfect speed-up, measured points. Each doubling of the workers is as
    wide as the others."""
    lines = found.forecasts
    highest = max([line.high for line in lines] + [one.speedup for one in found.measured])
    most = max(line.workers for line in lines)
    scale = Scale(low=(0.0, 0.0), high=(max(1.0, log2(most)), highest * 1.08))
    levels = ticks(0.0, highest * 1.08)
    parts = [f'<path class="grid" d="M0,{scale.down(value) * 1000:.0f}H1000"/>' for value in levels]
    parts += [_band(scale, lines), _law(scale, lines), _perfect(scale, most)]
    parts += [
        dot(
            scale,
            (log2(one.workers), one.speedup),
            f"{one.attempt_id}: {one.workers} workers, {one.speedup:.2f} x"
            + (f", a probe of {one.share:.0%}" if one.probe else ""),
            "c2" if one.probe else "c1",
        )
        for one in found.measured
    ]
    return figure(
        parts,
        x_labels=[(scale.across(log2(line.workers)), f"{line.workers}") for line in lines],
        y_labels=[(scale.down(y), f"{text} x") for y, text in zip(levels, tick_texts(levels), strict=True)],
        axes=Axes(x="workers", y="speed-up"),
        legend=[("forecast", "c1"), ("perfect speed-up", "c2 dashed")],
    )


def _path(scale: Scale, points: Sequence[Point]) -> str:
    return " ".join(map(scale.place, points))


def _band(scale: Scale, lines: Sequence[Forecast]) -> str:
    there = [(log2(line.workers), line.high) for line in lines]
    back = [(log2(line.workers), line.low) for line in reversed(lines)]
    return f'<polygon class="band" points="{_path(scale, [*there, *back])}"/>'


def _law(scale: Scale, lines: Sequence[Forecast]) -> str:
    points = [(log2(line.workers), line.speedup) for line in lines]
    return f'<polyline class="line c1" points="{_path(scale, points)}"/>'


def _perfect(scale: Scale, most: int) -> str:
    """Twice the workers, twice the speed: as far as it is within the picture."""
    steps = [step / 4 for step in range(4 * 16) if 2 ** (step / 4) <= min(most, scale.high[1])]
    return f'<polyline class="line c2 dashed" points="{_path(scale, [(step, 2**step) for step in steps])}"/>'
