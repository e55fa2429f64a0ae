"""This module decides whether an alias moves to a new version of a model after the new version was compared
with the version that the alias names.

The comparison uses the same labelled rows for both versions, and neither version has learned from these rows.
"""

from enum import StrEnum
from math import isfinite

from gridmill.domain.amounts import parse_number, show_count, show_number
from gridmill.domain.frozen import dataclass, replace
from gridmill.domain.metrics import read_metric
from gridmill.errors import ConflictError, InputError

PROMOTION = "promotion"
"""The name of the measurement in the details of a prediction."""
PROMOTION_EVENT = "promotion"
"""The type of the events of aliases that a comparison moves or keeps."""
LEAST_ROWS = 100
"""The default for the smallest number of rows on which two versions are compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromotionSpec:
    """The condition under which an alias moves to the model of a prediction.

    `alias` is the alias with the name of the model, such as `weather/lstm@champion`. The model and the
    version that the alias names predict the same labelled rows of the prediction's `split`. These rows are
    newer than all rows from which either version has learned. With `period`, only the rows of this last
    period are used. At least `min_rows` rows are needed. The metric is `best_by`. The alias moves if the new
    version is better by at least `margin`, which is a number in the unit of the metric, or a percentage of
    the value of the present version. Equal versions never move the alias. With `approve`, the alias moves
    only after `gridmill promote model ALIAS`. If the alias names no version yet, it is set without a
    comparison.
    """

    alias: str
    margin: str = "0"
    period_seconds: float | None = None
    min_rows: int = LEAST_ROWS
    approve: bool = False

    def check(self) -> None:
        """Raise InputError if a field has a value that has no meaning."""
        name, _, alias = self.alias.partition("@")
        if name.count("/") != 1 or not all(name.split("/")) or not alias or alias.isdecimal():
            raise InputError(
                f"{self.alias!r} is not an alias of a model",
                hint="Write PIPELINE/JOB@ALIAS, for example weather/lstm@champion.",
                place="promote.alias",
            )
        if alias in ("latest", "best"):
            raise InputError(
                f"the alias {alias!r} cannot be set",
                hint="Write another alias, for example champion.",
                place="promote.alias",
            )
        read_margin(self.margin)
        if self.min_rows < 1:
            raise InputError(f"`min_rows` is {self.min_rows}; it must be 1 or more", place="promote.min_rows")
        if self.period_seconds is not None and self.period_seconds <= 0:
            raise InputError("`period` must be more than 0", place="promote.period")


@dataclass(frozen=True, slots=True, kw_only=True)
class Margin:
    """The least improvement, in the unit of the metric, or as a share of the value of the present version."""

    value: float
    is_share: bool

    def needed(self, serving_value: float) -> float:
        """Return the least improvement in the unit of the metric."""
        return self.value * abs(serving_value) if self.is_share else self.value


def read_margin(text: str) -> Margin:
    """Parse a margin such as `0.05` or `2%`. Raises InputError."""
    stripped = text.strip()
    is_share = stripped.endswith("%")
    try:
        value = parse_number(stripped.removesuffix("%").strip())
    except InputError as error:
        raise InputError(
            f"{text!r} is not a margin",
            hint="Write a number in the unit of the metric, such as 0.05, or a percentage, such as 2%.",
            place="promote.margin",
        ) from error
    return Margin(value=value / 100 if is_share else value, is_share=is_share)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromotionMeasurement:
    """The measurement of a new version (`candidate`) and of the version that the alias names (`serving`;
    empty if it names none), by the same metric on the same rows.

    `begins` and `ends` are the times of the first and the last of these `rows`, in ISO 8601. `problem` is the
    reason why the two versions could not be measured. A value is None if it was not measured.
    """

    candidate: str
    serving: str = ""
    metric: str = ""
    candidate_value: float | None = None
    serving_value: float | None = None
    rows: int = 0
    begins: str = ""
    ends: str = ""
    problem: str = ""


class PromotionState(StrEnum):
    """What became of the new version."""

    MOVED = "moved"
    KEPT = "not moved"
    WAITING = "waits for approval"
    REFUSED = "refused"
    RETURNED = "rolled back"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True, kw_only=True)
class Promotion:
    """The last comparison of an alias, and its result. `reason` is the result as a sentence. `run` is the run
    that compared the versions. `created` is the time of the comparison, and `decided` the time of the last
    change of the state (Unix seconds)."""

    state: PromotionState
    measured: PromotionMeasurement
    margin: str = "0"
    reason: str = ""
    run: str = ""
    created: float = 0.0
    decided: float = 0.0

    @property
    def text(self) -> str:
        """The result in one line, with the values of both versions."""
        return f"{self.state}: {self.reason}"

    @property
    def is_waiting(self) -> bool:
        """Whether a user must approve or refuse the new version."""
        return self.state is PromotionState.WAITING


@dataclass(frozen=True, slots=True, kw_only=True)
class AliasNow:
    """The version that an alias names at the moment of the decision. `version` is empty if the alias names
    none, or if it names the best version by `metric`."""

    version: str = ""
    metric: str = ""


def decide_promotion(
    spec: PromotionSpec, measured: PromotionMeasurement, alias: AliasNow, run: str, now: float
) -> Promotion:
    """Decide whether the alias moves to the measured version."""
    state, reason = _decided(spec, measured, alias)
    return Promotion(
        state=state,
        measured=measured,
        margin=spec.margin,
        reason=reason,
        run=run,
        created=now,
        decided=now,
    )


def _decided(
    spec: PromotionSpec, measured: PromotionMeasurement, alias: AliasNow
) -> tuple[PromotionState, str]:
    if alias.metric:
        return PromotionState.KEPT, f"the alias names the best version by {alias.metric}, and not one version"
    if alias.version != measured.serving:
        named = alias.version or "no version"
        return PromotionState.KEPT, f"the alias names {named} now; the next run compares again"
    if not measured.serving:
        return PromotionState.MOVED, f"{measured.candidate}: the alias named no version"
    new, old = measured.candidate_value, measured.serving_value
    why = measured.problem or why_not_comparable(spec, measured)
    if why or new is None or old is None:
        return PromotionState.KEPT, f"{measured.candidate} was not compared with {measured.serving}: {why}"
    values = _values(measured, new, old)
    gain = new - old if read_metric(measured.metric)[1] else old - new
    if gain <= 0:
        return PromotionState.KEPT, f"{values}, which is not better"
    text = f"{values}, which is better by {_gain(gain, old)}"
    if gain < read_margin(spec.margin).needed(old):
        return PromotionState.KEPT, f"{text}, less than the margin {spec.margin}"
    return (PromotionState.WAITING if spec.approve else PromotionState.MOVED), text


def why_not_comparable(spec: PromotionSpec, measured: PromotionMeasurement) -> str:
    """Return the reason why the measured values permit no decision; empty if they do."""
    if measured.rows < spec.min_rows:
        return f"{show_count(measured.rows, 'row')} with a label, and at least {spec.min_rows} are needed"
    values = {measured.candidate: measured.candidate_value, measured.serving: measured.serving_value}
    for name, value in values.items():
        if value is None or not isfinite(value):
            return f"{name} has no {measured.metric} on these rows"
    return ""


def _values(measured: PromotionMeasurement, new: float, old: float) -> str:
    return (
        f"{measured.candidate} has {measured.metric} {show_number(new)}, {measured.serving} has "
        f"{show_number(old)} on the same {measured.rows:,} rows ({measured.begins} to {measured.ends})"
    )


def _gain(better_by: float, serving_value: float) -> str:
    share = f" ({100 * better_by / abs(serving_value):.2g} %)" if serving_value else ""
    return f"{show_number(better_by)}{share}"


def approved(promotion: Promotion | None, alias: str, version: str, now: float) -> Promotion:
    """Return the promotion after a user has approved it. `version` is the version that the alias names now.
    Raises ConflictError if no version waits for approval."""
    waiting = _waiting(promotion, alias)
    if version != waiting.measured.serving:
        raise ConflictError(
            f"{alias} names {version} now, but {waiting.measured.candidate} was compared with "
            f"{waiting.measured.serving}",
            hint="The next run compares again. To move the alias by hand: gridmill configure model "
            f"{alias.partition('@')[0]} --alias {alias.partition('@')[2]}=NUMBER",
        )
    return replace(waiting, state=PromotionState.MOVED, decided=now)


def refused(promotion: Promotion | None, alias: str, now: float) -> Promotion:
    """Return the promotion after a user has refused it. Raises ConflictError if no version waits for
    approval."""
    return replace(_waiting(promotion, alias), state=PromotionState.REFUSED, decided=now)


def returned(promotion: Promotion | None, alias: str, version: str, now: float) -> Promotion:
    """Return the promotion after the alias returned to the version before the move. `version` is the version
    that the alias names now. Raises ConflictError if the alias did not move to it by a comparison."""
    if (
        promotion is None
        or promotion.state is not PromotionState.MOVED
        or not promotion.measured.serving
        or promotion.measured.candidate != version
    ):
        raise ConflictError(
            f"{alias} has no version that waits for approval, and was not moved to {version} by a comparison",
            hint=f"To move the alias by hand: gridmill configure model {alias.partition('@')[0]} --alias "
            f"{alias.partition('@')[2]}=NUMBER",
        )
    return replace(promotion, state=PromotionState.RETURNED, decided=now)


def expired(promotion: Promotion | None, now: float) -> Promotion | None:
    """Return the promotion after the alias was moved by hand, so that nothing waits for approval."""
    if promotion is None or not promotion.is_waiting:
        return promotion
    return replace(promotion, state=PromotionState.EXPIRED, decided=now)


def _waiting(promotion: Promotion | None, alias: str) -> Promotion:
    if promotion is None or not promotion.is_waiting:
        raise ConflictError(
            f"no version waits for the approval of {alias}", hint=f"gridmill show alias {alias}"
        )
    return promotion
