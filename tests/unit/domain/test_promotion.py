"""An alias moves only to a version that is better by the margin, on enough of the same rows."""

from dataclasses import replace

import pytest

from gridmill.domain.promotion import (
    AliasNow,
    PromotionMeasurement,
    PromotionSpec,
    PromotionState,
    approved,
    decide_promotion,
    expired,
    refused,
    returned,
)
from gridmill.errors import ConflictError, InputError

ALIAS = "weather/lstm@champion"
NEW, OLD = "weather/lstm@5", "weather/lstm@3"
MEASURED = PromotionMeasurement(
    candidate=NEW,
    serving=OLD,
    metric="rmse",
    candidate_value=0.4,
    serving_value=0.5,
    rows=400,
    begins="2024-03-01T00:00:00",
    ends="2024-03-08T00:00:00",
)


def decided(measured=MEASURED, now=None, **terms):
    alias = now or AliasNow(version=OLD)
    return decide_promotion(PromotionSpec(alias=ALIAS, **terms), measured, alias, "weather-7", 10.0)


def test_a_version_that_is_better_moves_the_alias_and_the_reason_has_both_values():
    promotion = decided(margin="10%")
    assert promotion.state is PromotionState.MOVED
    assert promotion.reason == (
        "weather/lstm@5 has rmse 0.4, weather/lstm@3 has 0.5 on the same 400 rows (2024-03-01T00:00:00 to "
        "2024-03-08T00:00:00), which is better by 0.1 (20 %)"
    )
    assert (promotion.run, promotion.created) == ("weather-7", 10.0)


@pytest.mark.parametrize(
    ("metric", "new", "old", "margin", "state"),
    [
        ("rmse", 0.5, 0.5, "0", PromotionState.KEPT),
        ("rmse", 0.6, 0.5, "0", PromotionState.KEPT),
        ("rmse", 0.4999, 0.5, "0", PromotionState.MOVED),
        ("rmse", 0.46, 0.5, "10%", PromotionState.KEPT),
        ("rmse", 0.44, 0.5, "10%", PromotionState.MOVED),
        ("rmse", 0.46, 0.5, "0.05", PromotionState.KEPT),
        ("rmse", 0.44, 0.5, "0.05", PromotionState.MOVED),
        ("auc", 0.4, 0.5, "0", PromotionState.KEPT),
        ("auc", 0.53, 0.5, "0.05", PromotionState.KEPT),
        ("auc", 0.56, 0.5, "0.05", PromotionState.MOVED),
        ("r2", -0.1, -0.2, "60%", PromotionState.KEPT),
        ("r2", -0.1, -0.2, "40%", PromotionState.MOVED),
        ("log_loss", 0.0, 0.0, "5%", PromotionState.KEPT),
    ],
)
def test_the_metric_gives_the_direction_and_the_unit_of_the_margin(metric, new, old, margin, state):
    measured = replace(MEASURED, metric=metric, candidate_value=new, serving_value=old)
    assert decided(measured, margin=margin).state is state


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"rows": 99}, "99 rows with a label, and at least 100 are needed"),
        ({"problem": "it is unknown from which rows weather/lstm@3 has learned"}, "it is unknown from"),
        ({"serving_value": None}, "weather/lstm@3 has no rmse on these rows"),
        ({"candidate_value": float("nan")}, "weather/lstm@5 has no rmse on these rows"),
    ],
)
def test_versions_that_cannot_be_compared_leave_the_alias_and_give_the_reason(change, why):
    promotion = decided(replace(MEASURED, **change))
    assert promotion.state is PromotionState.KEPT
    assert why in promotion.reason


def test_an_alias_without_a_version_is_set_without_a_comparison_or_approval():
    first = PromotionMeasurement(candidate=NEW, metric="rmse")
    promotion = decided(first, AliasNow(), approve=True)
    assert (promotion.state, promotion.reason) == (
        PromotionState.MOVED,
        "weather/lstm@5: the alias named no version",
    )


@pytest.mark.parametrize(
    ("measured", "now"),
    [
        (MEASURED, AliasNow(version="weather/lstm@4")),
        (MEASURED, AliasNow()),
        (PromotionMeasurement(candidate=NEW), AliasNow(version=OLD)),
        (MEASURED, AliasNow(metric="validation_rmse")),
    ],
)
def test_an_alias_that_was_changed_during_the_comparison_does_not_move(measured, now):
    promotion = decided(measured, now)
    assert promotion.state is PromotionState.KEPT
    assert "the alias names" in promotion.reason


def test_with_approval_a_user_decides():
    waiting = decided(approve=True)
    assert waiting.state is PromotionState.WAITING
    assert approved(waiting, ALIAS, OLD, 20.0).state is PromotionState.MOVED
    assert refused(waiting, ALIAS, 20.0).state is PromotionState.REFUSED
    with pytest.raises(ConflictError, match="names weather/lstm@4 now, but weather/lstm@5 was compared"):
        approved(waiting, ALIAS, "weather/lstm@4", 20.0)
    gone = expired(waiting, 20.0)
    assert gone is not None
    assert gone.state is PromotionState.EXPIRED
    for answer in (lambda: approved(gone, ALIAS, OLD, 30.0), lambda: refused(None, ALIAS, 30.0)):
        with pytest.raises(ConflictError, match="no version waits for the approval"):
            answer()


def test_only_the_last_move_by_a_comparison_is_rolled_back():
    moved = decided()
    assert returned(moved, ALIAS, NEW, 20.0).state is PromotionState.RETURNED
    assert expired(moved, 20.0) is moved
    for promotion, version in ((moved, "weather/lstm@9"), (None, NEW), (decided(margin="90%"), OLD)):
        with pytest.raises(ConflictError, match="has no version that waits"):
            returned(promotion, ALIAS, version, 20.0)


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"alias": "lstm@champion"}, "promote.alias"),
        ({"alias": "weather/lstm"}, "promote.alias"),
        ({"alias": "weather/lstm@3"}, "promote.alias"),
        ({"alias": "weather/lstm@latest"}, "promote.alias"),
        ({"margin": "-1"}, "promote.margin"),
        ({"margin": "2 percent"}, "promote.margin"),
        ({"min_rows": 0}, "promote.min_rows"),
        ({"period_seconds": 0.0}, "promote.period"),
    ],
)
def test_a_condition_without_a_meaning_is_refused(fields, place):
    with pytest.raises(InputError) as error:
        PromotionSpec(**({"alias": ALIAS} | fields)).check()
    assert error.value.place == place
