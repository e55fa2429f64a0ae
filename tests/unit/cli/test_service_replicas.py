"""The number of replicas as a user writes it, and the size of a service as a user reads it."""

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from gridmill.cli.plan import _row
from gridmill.cli.service_texts import describe_service, plan_lines
from gridmill.domain.amounts import GIB, Amounts
from gridmill.domain.drift import VersionDrift
from gridmill.domain.resource import Sizing
from gridmill.domain.service import ServiceState, ServiceView
from gridmill.domain.service_counters import PodCounters
from gridmill.domain.service_features import ViewReport
from gridmill.domain.service_pods import FurtherPod
from gridmill.domain.service_settings import ServiceSettings
from gridmill.domain.service_size import ServicePlan, size_for_rate
from gridmill.domain.service_spec import read_replicas
from gridmill.domain.service_totals import totals_of
from gridmill.domain.serving import LoadedVersion, ReplicaReport, ReplicaState, Verification
from gridmill.domain.views import PlannedJob
from gridmill.errors import InputError
from gridmill.testing.store_samples import a_calibration, a_service


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", (0, None)), ("4", (4, None)), ("1..8", (8, 1)), ("0..8", (8, 0)), ("3..3", (3, 3))],
)
def test_a_number_and_a_range_are_read(text, expected):
    assert read_replicas(text) == expected


@pytest.mark.parametrize("text", ["0", "-1", "x", "1..", "..8", "1..0", "1.5", "1-8", "1...8"])
def test_other_texts_are_refused_with_an_example(text):
    with pytest.raises(InputError, match="is not a number of replicas") as refused:
        read_replicas(text)
    assert "1..8" in refused.value.hint


def test_the_lines_of_a_plan_have_the_size_the_latency_the_reasons_and_the_saving():
    calibration = a_calibration()
    size = size_for_rate(calibration, 2000.0)
    plan = ServicePlan(version=size.version, machine="CPU, 4 CPUs", size=size, sharing=("saves 1 CPU",))
    lines = list(plan_lines(plan))
    assert lines[0] == (
        "service of weather/lstm@2: 2 replicas, 2 CPUs, 576 MiB for 2,000 requests/s, expected p99 6.69 ms; "
        "can serve 2,520 requests/s"
    )
    assert lines[1] == (
        "  2 replicas: one replica served 1,800 requests/s with 4 connections, of which 70% are planned"
    )
    assert lines[-2:] == ["  measured on CPU, 4 CPUs", "saves 1 CPU"]
    assert list(plan_lines(ServicePlan(version="w/m@1", machine="x", run_id="r-1"))) == []


def test_a_service_shows_whether_golden_rows_were_reproduced_and_which_packages_differ():
    text = "onnxruntime 1.17.0 made the version, 1.19.2 computes it"
    loaded = (
        LoadedVersion(label="w/m@3", verification=Verification.VERIFIED, differences=(text,)),
        LoadedVersion(label="w/m@4"),
    )
    replicas = tuple(
        ReplicaReport(number=number, state=ReplicaState.READY, generation=1, versions=loaded)
        for number in range(2)
    )
    service = a_service()
    assert service.report is not None
    service = replace(service, report=replace(service.report, replicas=replicas))
    view = ServiceView(service=service, state=ServiceState.RUNNING, since=1.0)
    out = StringIO()
    Console(width=200, file=out).print(*describe_service(view))
    shown = [" ".join(line.split()) for line in out.getvalue().splitlines()]
    assert shown.count("golden rows w/m@3 is verified") == 1
    assert shown.count("golden rows w/m@4 is not verified") == 1
    assert shown.count(f"warning w/m@3: {text}") == 1


@pytest.mark.parametrize(("memory_bytes", "size"), [(0, "unknown"), (GIB, "1 CPU, 1 GiB")])
def test_a_plan_shows_a_size_only_if_it_is_known(memory_bytes, size):
    sizing = Sizing(amounts=Amounts(cpus=1.0 if memory_bytes else 0.0, memory_bytes=memory_bytes))
    job = PlannedJob(
        job="live",
        kind="service",
        resource="default-service",
        site="local",
        needs=(),
        wave=1,
        sizing=sizing,
    )
    assert _row(job)[5] == size


def test_a_size_that_was_measured_with_another_version_names_it():
    calibration = a_calibration()
    size = size_for_rate(calibration, 2000.0)
    service = replace(a_service(), version="weather/lstm@3", size=size, rate=2000.0, replicas=size.replicas)
    view = ServiceView(service=service, state=ServiceState.RUNNING, url=service.url)
    output = StringIO()
    Console(file=output, width=400).print(*describe_service(view))
    assert "measured with weather/lstm@2, and not with weather/lstm@3" in output.getvalue()
    assert "(gridmill update service rain --rate 2000)" in output.getvalue()
    output = StringIO()
    same = replace(view, service=replace(service, version="weather/lstm@2"))
    Console(file=output, width=400).print(*describe_service(same))
    assert "measured with" not in output.getvalue()


def test_the_numbers_of_all_pods_are_shown_and_a_pod_without_contact_is_marked():
    service = a_service()
    assert service.report is not None
    replica = ReplicaReport(number=1, state=ReplicaState.READY, generation=1, memory_bytes=GIB)
    view_of_pod = ViewReport(folder="v", is_complete=True, problem="the table is locked")
    report = replace(service.report, replicas=(replica,), written_at=1.0, scale_reason="2 instead of 1")
    late = replace(report, views=(view_of_pod,), address="http://10.0.0.2:80")
    further = (FurtherPod(job="serve-2", report=late, reported_by="b"),)
    counted = (PodCounters(attempt_id="ended", restarts=2, log_lost=40),)
    service = replace(
        service,
        report=report,
        settings=ServiceSettings(pods=2),
        further_pods=further,
        counted=counted,
        drift_of_pods=(VersionDrift(label="w/m@3", rows=20, pods=2),),
    )
    totals = totals_of(service, silent={"b"})
    view = ServiceView(service=service, state=ServiceState.RUNNING, since=1.0, ready=2, totals=totals)
    out = StringIO()
    Console(width=250, file=out).print(*describe_service(view))
    shown = [" ".join(line.split()) for line in out.getvalue().splitlines()]
    assert "memory 2 GiB" in shown
    assert "log 40 lines lost" in shown
    assert "restarts 2 restarts" in shown
    assert any(line.startswith("last change 2 instead of 1 in one pod") for line in shown)
    assert any(line.startswith("serve-2 ready at ") and "no contact" in line for line in shown)
    assert any(line.startswith("serve-2") and line.endswith("the table is locked") for line in shown)
    assert sum(line.startswith(("serve 1 ready", "serve-2 1 ready")) for line in shown) == 2
