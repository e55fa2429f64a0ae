"""This module has the expected time and cost of a job on a rented machine, by phase and by kind of cost."""

from collections.abc import Iterable, Mapping
from dataclasses import field
from enum import StrEnum

from gridmill.domain.amounts import about
from gridmill.domain.charges import GIGABYTE, MONTH_SECONDS, Charges, CostKind
from gridmill.domain.frozen import dataclass, replace
from gridmill.domain.lease import MICROS

__all__ = (
    "GIGABYTE",
    "MONTH_SECONDS",
    "Charges",
    "CostForecast",
    "CostKind",
    "Phase",
    "RentalEstimate",
    "estimate_lines",
    "forecast_of",
    "show_money",
    "show_moneys",
    "whole_forecast",
)


class Phase(StrEnum):
    """A phase of the use of a rented machine, in the order of time."""

    BOOT = "boot"
    """From the request until the machine can start jobs, including the installation of Gridmill."""
    UPLOAD = "upload"
    RUN = "run"
    DOWNLOAD = "download"
    RELEASE = "release"
    """From the end of the download until the provider has confirmed the end of the machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RentalEstimate:
    """The expected time and cost of one job on rented machines, one for each worker.

    `machines` is the number of equal machines. `seconds` has the phases whose duration is known, and `micros`
    has the known costs of one machine, in micro-units of `currency`. `price_micros` is the price of one
    machine per hour, or None if it is unknown. `unknown` names everything that the estimate lacks, and
    `assumed` names the values that were not measured. `warning` is a risk of the machine for this job.
    `away` is where the machine stores the result while the control node is away.
    """

    instance_type: str
    region: str
    price_micros: int | None = None
    seconds: Mapping[Phase, float] = field(default_factory=dict)
    micros: Mapping[CostKind, int] = field(default_factory=dict)
    currency: str = "USD"
    unknown: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    machines: int = 1
    warning: str = ""
    away: str = ""

    def with_warning(self, text: str) -> "RentalEstimate":
        """Return the estimate with a further warning. An empty text adds none."""
        return replace(self, warning="; ".join(one for one in (self.warning, text) if one))

    @property
    def total_seconds(self) -> float | None:
        """The seconds from the request until the end of the machine, or None if a phase is unknown."""
        return sum(self.seconds.values()) if len(self.seconds) == len(Phase) else None

    @property
    def total_micros(self) -> int | None:
        """The cost of all machines in micro-units, or None if a part of the cost is unknown."""
        return self.machines * sum(self.micros.values()) if len(self.micros) == len(CostKind) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class CostForecast:
    """The cost of rented machines that was expected when a run started, of one job or of all its jobs.
    `micros` has the known costs in micro-units by currency. `unknown` names what is unknown, so that the
    known costs are not all costs."""

    micros: Mapping[str, int] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()


MOST_UNKNOWN = 5
"""The largest number of unknown parts that the forecast of a run names."""


def forecast_of(job: str, estimate: RentalEstimate) -> CostForecast:
    """Return the forecast for one job."""
    if estimate.total_micros is not None:
        return CostForecast(micros={estimate.currency: estimate.total_micros})
    return CostForecast(unknown=tuple(f"{job}: {text}" for text in estimate.unknown or ("its cost",)))


def whole_forecast(forecasts: Iterable[CostForecast]) -> CostForecast | None:
    """Return the forecast for all jobs of a run, or None if no machine is expected to be rented. Costs in
    different currencies are not added."""
    known = tuple(forecasts)
    micros: dict[str, int] = {}
    for currency, amount in (pair for one in known for pair in one.micros.items()):
        micros[currency] = micros.get(currency, 0) + amount
    unknown = [text for one in known for text in one.unknown]
    more = len(unknown) - MOST_UNKNOWN
    shown = (*unknown[:MOST_UNKNOWN], *((f"{more} more",) if more > 0 else ()))
    return CostForecast(micros=micros, unknown=shown) if known else None


def show_moneys(micros: Mapping[str, int]) -> str:
    """Format amounts by currency, such as `1.25 USD and 3.00 EUR`, or as `0` if there are none."""
    return " and ".join(show_money(amount, currency) for currency, amount in sorted(micros.items())) or "0"


def show_money(micros: int, currency: str = "USD") -> str:
    """Format an amount of money as `1.25 USD`. Amounts below one unit have four decimals, so that the cost of
    a minute is visible. An amount that would be shown as 0 but is not 0 is shown as `<0.0001 USD`."""
    if 0 < micros < 50:
        return f"<0.0001 {currency}"
    return f"{micros / MICROS:,.{2 if abs(micros) >= MICROS else 4}f} {currency}"


def estimate_lines(estimate: RentalEstimate) -> tuple[str, ...]:
    """Return sentences about the time of each phase, the cost of each kind, and what is unknown or
    assumed."""
    phases = " + ".join(f"{about(seconds)} {phase}" for phase, seconds in estimate.seconds.items() if seconds)
    seconds, micros = estimate.total_seconds, estimate.total_micros
    whole = "the total is not known yet" if seconds is None else f"{about(seconds)} in all"
    several = estimate.machines > 1
    count = f"{estimate.machines} machines of type " if several else ""
    parts = ", ".join(
        f"{show_money(cost, estimate.currency)} for the {kind}"
        for kind, cost in estimate.micros.items()
        if cost
    )
    costs = (
        "the cost is not known yet" if micros is None else f"costs {show_money(micros, estimate.currency)}"
    )
    price = estimate.price_micros
    hourly = "" if price is None else f" for {show_money(price, estimate.currency)} per hour"
    return (
        f"{count}{estimate.instance_type} in {estimate.region}{hourly}: "
        f"{phases or 'no phase is measured'}; {whole}",
        f"{costs} ({'each machine: ' if several else ''}{parts})" if parts else costs,
        *(f"not known: {one}" for one in estimate.unknown),
        *(f"assumed: {one}" for one in estimate.assumed),
        *((f"while the control node is away: {estimate.away}",) if estimate.away else ()),
        *((f"warning: {estimate.warning}",) if estimate.warning else ()),
    )
