"""This module decides which budgets of rented machines are used up in a month."""

from collections.abc import Iterable, Mapping, Sequence

from gridmill.domain.frozen import dataclass
from gridmill.domain.lease_cost import Bounds
from gridmill.domain.rental_estimate import show_money

Owner = tuple[str, str]
"""The kind of the owner of a budget (RESOURCE or PROJECT) and its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The highest cost of all rentals of a resource or a project in one month, in micro-units of
    `currency`. The costs of a budget in another currency do not count."""

    owner: Owner
    micros: int
    currency: str


def used_budgets(budgets: Iterable[Budget], spent: Sequence[Bounds], month: str) -> Mapping[Owner, str]:
    """Return the owners whose budgets for this month are used up, with the reason. `spent` has the highest
    possible costs in the month. The costs of all its items are added."""
    used: dict[Owner, str] = {}
    for one in budgets:
        kind, name = one.owner
        micros = sum(bounds.get((kind, name, one.currency), 0) for bounds in spent)
        if micros >= one.micros:
            budget = show_money(one.micros, one.currency)
            # without the present cost, because a problem is reported again when its text changes
            used[one.owner] = (
                f"the budget of {kind} {name} for {month}, {budget}, is used up; `gridmill costs --by {kind}"
                f" --month {month}` shows the costs"
            )
    return used
