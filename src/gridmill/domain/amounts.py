"""This module has the amounts of CPUs, memory and GPUs, and functions that parse and print sizes, durations,
counts and numbers.

This module also numbers the shares of GPUs that jobs share: each GPU has several shares, which are numbered
consecutively (shares 0 to 3 belong to the first GPU).
"""

import re
from collections.abc import Iterable, Mapping, Sequence

from gridmill.domain.frozen import dataclass
from gridmill.errors import InputError

KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40

_BYTES = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": KIB,
    "mib": MIB,
    "gib": GIB,
    "tib": TIB,
    "k": KIB,
    "m": MIB,
    "g": GIB,
    "t": TIB,
}
_SECONDS = {"": 1.0, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604_800.0}
_MONTHS = {"mo": 1, "y": 12}
_NOT_SECONDS = {
    "M": "M can mean minutes or months; write m for minutes",
    "Ms": "Ms can mean milliseconds or months; write ms for milliseconds",
    "MS": "MS can mean milliseconds or months; write ms for milliseconds",
}
"""Units of time that are ambiguous or unsupported, each with the message with which `parse_seconds` rejects
it."""
_NOT_PERIODS = {
    "M": "M can mean minutes or months; write m for minutes, mo for months",
    "Ms": "Ms can mean milliseconds or months; write ms or mo",
    "MS": "MS can mean milliseconds or months; write ms or mo",
}
_NOT_BYTES = {
    f"{scale}{binary}b": f"{scale}{binary}b means bits; write {scale}{binary}B for bytes"
    for scale in "KMGT"
    for binary in ("", "i")
}
_COUNTS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9}
_NUMBER = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts:
    """A number of CPUs (cores, may be fractional), a memory size in bytes, and a number of whole GPUs."""

    cpus: float = 0.0
    memory_bytes: int = 0
    gpus: int = 0

    def __add__(self, other: "Amounts") -> "Amounts":
        return Amounts(
            cpus=self.cpus + other.cpus,
            memory_bytes=self.memory_bytes + other.memory_bytes,
            gpus=self.gpus + other.gpus,
        )

    def __sub__(self, other: "Amounts") -> "Amounts":
        return Amounts(
            cpus=self.cpus - other.cpus,
            memory_bytes=self.memory_bytes - other.memory_bytes,
            gpus=self.gpus - other.gpus,
        )

    def fits_in(self, other: "Amounts") -> bool:
        """Return whether the CPUs, the memory and the GPUs are each at most as large as those of `other`."""
        return (
            self.cpus <= other.cpus + 1e-9
            and self.memory_bytes <= other.memory_bytes
            and self.gpus <= other.gpus
        )


class Months(float):
    """A period of a whole number of calendar months. If a period is used as a number, the number is its
    count of months."""


def _parse(
    text: str,
    units: Mapping[str, float],
    what: str,
    examples: str,
    refused: Mapping[str, str] | None = None,
) -> float:
    match = _NUMBER.fullmatch(text)
    unit = match[2] if match is not None else ""
    if match is None or unit in (refused or {}) or unit.lower() not in units:
        why = f": {refused[unit]}" if refused and unit in refused else ""
        raise InputError(f"{text!r} is not {what}{why}", hint=f"Write for example {examples}.")
    return float(match[1]) * units[unit.lower()]


def parse_bytes(text: str | int) -> int:
    """Parse a size, written as `512MiB`, `2GB`, `2G` (binary, as in Slurm and Kubernetes) or a number of
    bytes.

    Raises InputError.
    """
    return int(_parse(str(text), _BYTES, "a size in bytes", "512MiB, 2GiB or 2000000", _NOT_BYTES))


def check_memory(memory_bytes: int | None, place: str = "") -> None:
    """Raise InputError if the memory is less than 1 MiB: a number without a unit means bytes, so the user
    probably forgot the unit of such a small number."""
    if memory_bytes is not None and memory_bytes < MIB:
        raise InputError(
            f"{memory_bytes:,} bytes of memory are too few for any job",
            hint="Write a unit, as in 512MiB or 4GiB.",
            place=place,
        )


def parse_seconds(text: str | float) -> float:
    """Parse a duration, written as `250ms`, `30s`, `5m`, `2h`, `1d`, `2w` or a number of seconds. Raises
    InputError."""
    match = _NUMBER.fullmatch(str(text))
    if match is not None and match[2] in _MONTHS:
        raise InputError(
            f"{text!r} is not a duration: months and years have no fixed length",
            hint="Write days or weeks, for example 30d or 4w.",
        )
    return _parse(str(text), _SECONDS, "a duration", "30s, 5m, 2h, 1d or 90", _NOT_SECONDS)


def parse_period(text: str | float) -> float | Months:
    """Parse a period: either a duration as for `parse_seconds`, or months, written as `6mo` or `1y`. Raises
    InputError."""
    match = _NUMBER.fullmatch(str(text))
    if match is None or match[2] not in _MONTHS:
        return _parse(str(text), _SECONDS, "a period", "30s, 5m, 2h, 1d, 6mo or 1y", _NOT_PERIODS)
    months = float(match[1]) * _MONTHS[match[2]]
    if not months.is_integer():
        raise InputError(f"{text!r} is not a whole number of months", hint="Write for example 6mo or 1y.")
    return Months(months)


def parse_number(text: str) -> float:
    """Parse a number without a unit. Raises InputError."""
    return _parse(text, {"": 1.0}, "a number", "2 or 0.5")


def parse_count(text: str | int) -> int:
    """Parse a count, written as `250k`, `1M`, `2B` or a number. Raises InputError."""
    return int(_parse(str(text), _COUNTS, "a count", "250k, 1M or 42"))


def show_count(count: int, thing: str) -> str:
    """Format a count with its noun, for example `1 job`, `2 jobs`, `1,000 jobs`."""
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def show_cpus(cpus: float) -> str:
    """Format a number of CPUs, for example `0.5 CPUs`, `1 CPU`, `8 CPUs`."""
    number = show_number(cpus)
    return f"{number} CPU{'' if number == '1' else 's'}"


def show_bytes(count: float) -> str:
    """Format a size in the largest binary unit in which it is at least 1, for example `1.5 GiB`."""
    for unit, size in (("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if count >= size:
            return f"{count / size:.1f} {unit}".replace(".0 ", " ")
    return f"{count:.0f} B"


def show_seconds(seconds: float) -> str:
    """Format a duration, for example `350 ms`, `4.2 s`, `3 m 05 s`, `2 h 10 m`."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes} m {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} m"


def show_period(seconds: float | None, months: int | None = None) -> str:
    """Format a period as in a declaration, in the largest unit that divides the period, for example `6mo`,
    `1y`, `7d`, `90m`, `45s`."""
    if months:
        return f"{months // 12}y" if months % 12 == 0 else f"{months}mo"
    for unit, size in (("d", 86_400.0), ("h", 3600.0), ("m", 60.0)):
        if seconds and seconds % size == 0:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds or 0.0:g}s"


def show_factor(value: float) -> str:
    """Format a factor with two significant digits below 10, and as a whole number from 10 upwards, for
    example `1.6`, `30`, `120`."""
    return f"{value:.2g}" if value < 10 else f"{value:,.0f}"


def show_number(value: float) -> str:
    """Format a whole number as `26,115`, and any other number with four significant digits as `0.1234`.
    Negative zero is formatted as `0`."""
    value += 0.0
    return f"{value:,.0f}" if float(value).is_integer() and abs(value) < 1e15 else f"{value:.4g}"


def about(seconds: float) -> str:
    """Format a duration as `40 min`, rounded to two digits, because a forecast is not more precise."""
    if seconds < 1:
        return "< 1 s"
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def roughly(seconds: float) -> str:
    """Format a duration as `about 12 min`, rounded to minutes, because the text is printed again at each
    change."""
    return f"about {about(seconds)}" if seconds >= 60.0 else "less than a minute"


GPU_SHARES = "gpu_shares"
"""The name of a setting of the local site: the number of shares of each of its GPUs."""
POD_GPUS, POD_GPU_SHARES = "GRIDMILL_GPUS", "GRIDMILL_POD_GPU_SHARES"
"""Environment variables of a pod: the GPUs of the machine that the site assigned to the pod, as in
CUDA_VISIBLE_DEVICES, and the number of shares of each GPU."""


def pick(free: Iterable[int], count: int, shares: int = 1) -> tuple[int, ...] | None:
    """Choose `count` of the free GPU shares, and return their numbers. If `count` is less than a whole GPU,
    all shares come from the GPU with the fewest free shares, so that other GPUs stay whole. If `count` is a
    whole GPU or more, only whole GPUs are chosen, with all of their shares. The result is None if there are
    not enough free shares."""
    if not count:
        return ()
    left: dict[int, list[int]] = {}
    for number in sorted(free):
        left.setdefault(number // shares, []).append(number)
    if count < shares:
        roomy = [numbers for numbers in left.values() if len(numbers) >= count]
        return tuple(min(roomy, key=len)[:count]) if roomy else None
    whole = [number for numbers in left.values() if len(numbers) == shares for number in numbers]
    wanted = -(-count // shares) * shares
    return tuple(whole[:wanted]) if len(whole) >= wanted else None


def devices_of(numbers: Sequence[int], shares: int = 1) -> tuple[int, ...]:
    """Return the numbers of the GPUs to which these shares belong, each number once."""
    return tuple(dict.fromkeys(number // shares for number in numbers))


def share_of(numbers: Sequence[int], shares: int = 1) -> float:
    """Return the fraction of each GPU that belongs to the pod or job with these share numbers; the fraction
    is 1 for whole GPUs."""
    return min(1.0, len(numbers) / shares) if numbers else 1.0
