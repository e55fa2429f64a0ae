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


def doubtful_budgets(
    budgets: Sequence[Budget], spent: Sequence[Bounds], unlisted: Mapping[str, Bounds], month: str
) -> Mapping[Owner, str]:
    """Return the owners whose budgets may be used up, with the reason. `unlisted` has, by site, the highest
    possible costs of leases whose machines may have ended, because the provider has not listed them since the
    start of the control node. `spent` are the other costs."""
    used = used_budgets(budgets, spent, month)
    possible = used_budgets(budgets, (*spent, *unlisted.values()), month)
    names = ", ".join(sorted(name for name, bounds in unlisted.items() if bounds))
    return {
        (kind, name): f"the budget of {kind} {name} for {month} may be used up: which machines of {names}"
        " have ended is not known until the provider lists them"
        for kind, name in possible
        if (kind, name) not in used
    }


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
