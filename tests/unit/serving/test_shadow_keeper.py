"""The counts of a shadow belong to one pair of versions, and a shadow does not start before its view."""

import socket
from dataclasses import replace
from pathlib import Path

from tests.kit.served_models import order_of

from gridmill.domain.service_features import ViewOrder, ViewOrders, ViewReport
from gridmill.domain.serving import ServedVersion, ServiceOrder, ShadowOrder
from gridmill.serving.metrics import SHADOW_DROPPED, SHADOW_LATENCY, Metrics
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


def test_the_metrics_of_a_shadow_end_with_it(tmp_path: Path) -> None:
    keeper, order = ShadowKeeper(tmp_path), with_shadow(order_of(Path("one")))
    keeper.tick(order, 0.0, is_wanted=False)
    count(tmp_path, 3, 7.0)
    replica = Metrics(tmp_path, 0, LABEL)
    replica.counts = {f'{SHADOW_DROPPED}{{version="{LABEL}"}}': 5}
    replica.save()
    lines = [one for one in replica.text().splitlines() if "shadow" in one and one[0] != "#"]
    assert sorted(one.partition("{")[0] for one in lines) == [
        "gridmill_shadow_difference_max",
        SHADOW_DROPPED,
        "gridmill_shadow_rows_total",
    ]
    keeper.tick(order, COUNT_SECONDS, is_wanted=False)
    assert keeper.report is not None
    assert (keeper.report.different, keeper.report.dropped) == (3, 5)
    # the next replicas continue the counts of the files, but not those of the shadow
    keeper.tick(replace(order, shadow=None), 2 * COUNT_SECONDS, is_wanted=False)
    assert keeper.report is None
    for label in ("", "weather/other@2"):
        assert "shadow" not in Metrics(tmp_path, 0, label).text()
    # the same shadow begins again
    keeper.tick(order, 3 * COUNT_SECONDS, is_wanted=False)
    keeper.tick(order, 5 * COUNT_SECONDS, is_wanted=False)
    assert (keeper.report.different, keeper.report.dropped) == (0, 0)
    keeper.close()


def test_the_report_has_the_latencies_of_the_shadow_and_of_the_served_answers(tmp_path: Path) -> None:
    keeper, order = ShadowKeeper(tmp_path), with_shadow(order_of(Path("one")))
    keeper.tick(order, 0.0, is_wanted=False)
    metrics = Metrics(tmp_path, "shadow")
    seconds = {
        ("shadow", "0.5"): 0.02,
        ("shadow", "0.99"): 0.04,
        ("served", "0.5"): 0.01,
        ("served", "0.99"): 0.03,
    }
    for (by, quantile), value in seconds.items():
        metrics.set_gauge(SHADOW_LATENCY, value, version=LABEL, by=by, quantile=quantile)
    metrics.save()
    keeper.tick(order, COUNT_SECONDS, is_wanted=False)
    report = keeper.report
    assert report is not None
    assert (report.p50_seconds, report.p99_seconds) == (0.02, 0.04)
    assert (report.served_p50_seconds, report.served_p99_seconds) == (0.01, 0.03)
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
