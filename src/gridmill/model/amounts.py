"""Amounts of CPUs, memory and GPUs, and how people write sizes and durations."""

import re

from gridmill.errors import InputError
from gridmill.model.noun import dataclass

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
_SECONDS = {"": 1.0, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_COUNTS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9}
_NUMBER = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts:
    """CPUs (cores, may be fractional), memory in bytes, whole GPUs."""

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
        """True where every amount is at most the other's."""
        return (
            self.cpus <= other.cpus + 1e-9
            and self.memory_bytes <= other.memory_bytes
            and self.gpus <= other.gpus
        )


def _parse(text: str, units: dict[str, float] | dict[str, int], what: str, examples: str) -> float:
    match = _NUMBER.fullmatch(text)
    if match is None or match[2].lower() not in units:
        raise InputError(f"{text!r} is not {what}", hint=f"Write for example {examples}.")
    return float(match[1]) * units[match[2].lower()]


def parse_bytes(text: str | int) -> int:
    """Bytes from `512MiB`, `2GB`, `2G` (binary, as Slurm and Kubernetes users write) or a number.

    Raises InputError.
    """
    return int(_parse(str(text), _BYTES, "a size in bytes", "512MiB, 2GiB or 2000000"))


def check_memory(memory_bytes: int | None, place: str = "") -> None:
    """Raises InputError for less than 1 MiB: a number without a unit is of bytes, and was meant otherwise."""
    if memory_bytes is not None and memory_bytes < MIB:
        raise InputError(
            f"{memory_bytes:,} bytes of memory are of no use to anybody",
            hint="Write a unit, as in 512MiB or 4GiB.",
            place=place,
        )


def parse_seconds(text: str | float) -> float:
    """Seconds from `250ms`, `30s`, `5m`, `2h`, `1d` or a number. Raises InputError."""
    return _parse(str(text), _SECONDS, "a duration", "30s, 5m, 2h or 90")


def parse_count(text: str | int) -> int:
    """A count from `250k`, `1M`, `2B` or a number. Raises InputError."""
    return int(_parse(str(text), _COUNTS, "a count", "250k, 1M or 42"))


def show_count(count: int, thing: str) -> str:
    """`1 job`, `2 jobs`, `1,000 jobs`."""
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def show_bytes(count: float) -> str:
    """`1.5 GiB`: the largest binary unit that leaves at least one whole."""
    for unit, size in (("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if count >= size:
            return f"{count / size:.1f} {unit}".replace(".0 ", " ")
    return f"{count:.0f} B"


def show_seconds(seconds: float) -> str:
    """`350 ms`, `4.2 s`, `3 m 05 s`, `2 h 10 m`."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes} m {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} m"


def show_factor(value: float) -> str:
    """`1.6`, `30`, `120`: two significant digits, and whole numbers beyond."""
    return f"{value:.2g}" if value < 10 else f"{value:,.0f}"


def show_number(value: float) -> str:
    """`26,115` for whole numbers, else four significant digits: `0.1234`."""
    return f"{value:,.0f}" if float(value).is_integer() and abs(value) < 1e15 else f"{value:.4g}"
