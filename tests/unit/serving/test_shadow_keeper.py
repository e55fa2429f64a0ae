"""The counts of a shadow belong to one pair of versions, and a shadow does not start before its view."""

import socket
from dataclasses import replace
from pathlib import Path

from tests.kit.served_models import order_of

from gridmill.domain.service_features import ViewOrder, ViewOrders, ViewReport
from gridmill.domain.serving import ServedVersion, ServiceOrder, ShadowOrder
from gridmill.serving.metrics import Metrics
from gridmill.serving.shadow_keeper import COUNT_SECONDS, ShadowKeeper
from gridmill.serving.view_keepers import ViewKeepers

LABEL = "weather/other@1"


def with_shadow(order: ServiceOrder, features: str = "") -> ServiceOrder:
    return replace(
        order, shadow=ShadowOrder(version=ServedVersion(label=LABEL, folder="", features=features))
    )


def count(folder: Path, different: int, largest: float) -> None:
    """Write the counts of a new process of the shadow."""
    metrics = Metrics(folder, "shadow")
    metrics.counts = {f'gridmill_shadow_rows_total{{version="{LABEL}",result="different"}}': different}
    metrics.set_gauge("gridmill_shadow_difference_max", largest, version=LABEL)
    metrics.save()


def test_counts_begin_again_when_the_service_has_another_version(tmp_path: Path) -> None:
    keeper, order = ShadowKeeper(tmp_path), with_shadow(order_of(Path("one"), Path("two")))
    first = replace(order, versions=order.versions[:1])
    keeper.tick(first, 0.0, is_wanted=False)
    count(tmp_path, 3, 7.0)
    keeper.tick(first, COUNT_SECONDS, is_wanted=False)
    assert keeper.report is not None
    assert (keeper.report.different, keeper.report.largest_difference) == (3, 7.0)
    second = replace(order, versions=order.versions[1:])
    for now in (2 * COUNT_SECONDS, 3 * COUNT_SECONDS):
        keeper.tick(second, now, is_wanted=False)
        assert (keeper.report.different, keeper.report.largest_difference) == (0, 0.0)
    count(tmp_path, 2, 1.0)
    keeper.tick(second, 4 * COUNT_SECONDS, is_wanted=False)
    assert (keeper.report.different, keeper.report.largest_difference) == (2, 1.0)
    keeper.close()


def test_the_largest_difference_outlasts_the_process(tmp_path: Path) -> None:
    keeper, order = ShadowKeeper(tmp_path), with_shadow(order_of(Path("one")))
    keeper.tick(order, 0.0, is_wanted=False)
    for now, largest in enumerate((7.0, 2.0), 1):
        count(tmp_path, 1, largest)
        keeper.tick(order, now * COUNT_SECONDS, is_wanted=False)
    assert keeper.report is not None
    assert (keeper.report.different, keeper.report.largest_difference) == (2, 7.0)
    keeper.close()


def test_a_shadow_does_not_start_before_its_view(tmp_path: Path) -> None:
    keeper, order = ShadowKeeper(tmp_path), with_shadow(order_of(Path("one")), "definition")
    views = ViewKeepers(tmp_path)
    views._orders = ViewOrders(
        views=(ViewOrder(definition="definition", folder="view", root="", tables={}),), checked_at=0.0
    )
    waits_for = views.why_shadow_waits(order)
    assert waits_for == f"the view of {LABEL} is not complete"
    descriptor = keeper.descriptor(order)
    assert descriptor is not None
    with socket.fromfd(descriptor, socket.AF_UNIX, socket.SOCK_SEQPACKET) as writing:
        writing.send(b"a copy")
    keeper.tick(order, 0.0, is_wanted=True, waits_for=waits_for)
    assert keeper.report is not None
    assert (keeper.report.is_ready, keeper.report.problem) == (False, waits_for)
    assert (keeper.report.dropped, keeper.report.restarts) == (1, 0)
    assert keeper._process is None
    views._reports = {"view": ViewReport(folder="view", problem="the disk is full")}
    assert views.why_shadow_waits(order) == f"{waits_for}: the disk is full"
    views._reports = {"view": ViewReport(folder="view", is_complete=True)}
    assert views.why_shadow_waits(order) == ""
    assert views.why_shadow_waits(replace(order, shadow=None)) == ""
    keeper.close()
