"""Which budgets of rented machines are used up."""

import pytest

from gridmill.domain.lease_cost import PROJECT, RESOURCE
from gridmill.scheduler.rental_budgets import Budget, used_budgets

VISION = Budget(owner=(PROJECT, "vision"), micros=3_000_000, currency="USD")


def spent(micros: int, kind: str = PROJECT, currency: str = "USD") -> dict[tuple[str, str, str], int]:
    """The costs of `vision`."""
    return {(kind, "vision", currency): micros}


@pytest.mark.parametrize("amounts", [(3_000_000,), (1_000_000, 2_000_000), (4_000_000,)])
def test_closed_and_open_leases_together_use_a_budget(amounts):
    used = used_budgets([VISION], [spent(one) for one in amounts], "2026-11")
    assert used == {
        (
            PROJECT,
            "vision",
        ): "the budget of project vision for 2026-11, 3.00 USD, is used up; `gridmill costs --by"
        " project --month 2026-11` shows the costs"
    }


@pytest.mark.parametrize(
    "costs", [spent(2_999_999), spent(9_000_000, RESOURCE), spent(9_000_000, currency="EUR")]
)
def test_smaller_costs_those_of_a_resource_and_other_currencies_do_not(costs):
    assert used_budgets([VISION], [costs], "2026-11") == {}


def test_a_budget_of_nothing_is_always_used():
    nothing = Budget(owner=(RESOURCE, "burst"), micros=0, currency="USD")
    assert set(used_budgets([nothing], [], "2026-11")) == {(RESOURCE, "burst")}
