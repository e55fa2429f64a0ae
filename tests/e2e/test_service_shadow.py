"""A shadow predicts copies of requests. Answers are those without it, also while it hangs or is killed."""

import json
import os
import signal
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest

from gridmill.domain.amounts import MIB
from gridmill.domain.footprint import REPLICA_BYTES
from gridmill.domain.serving import ServedVersion, ServiceOrder, ShadowOrder, ShadowReport
from gridmill.jobs.features import Encoding
from tests.e2e.conftest import Place, eventually
from tests.e2e.test_services import BODY, versions_of_a_model
from tests.kit.served_models import CITIES, FIELDS, linear_model, order_of, row, sum_model
from tests.kit.services import Load, Service, wait_for

pytestmark = pytest.mark.e2e
BODIES = [json.dumps({"rows": [row(number, 2)] * (1 + number % 3)}).encode() for number in range(20)]


def answers(port: int) -> list[bytes]:
    found = []
    for body in BODIES:
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(f"http://127.0.0.1:{port}/predict", body, headers)
        with urllib.request.urlopen(request) as reply:
            found.append(reply.read())
    return found


def metrics_of(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as reply:
        text: str = reply.read().decode()
    return text


FURTHER = 3
"""The requests of `compare_further`."""


def compare_further(service: Service, port: int, before: int) -> int:
    """Send large requests, and one with tensors whose answer is binary. Return the number of their rows."""
    many = 12_000
    names = [("temp", "FP64"), ("wind speed", "FP64"), ("city", "BYTES")]
    tensors = [
        {"name": name, "shape": [2], "datatype": kind, "data": [row(1)[name], row(2)[name]]}
        for name, kind in names
    ]
    lines = "\n".join(json.dumps(row(number)) for number in range(many)).encode()
    inference = {"inputs": tensors, "parameters": {"binary_data_output": True}}
    wide = {"inputs": [{**one, "shape": [many], "data": one["data"] * (many // 2)} for one in tensors]}
    infer = "/v2/models/weather/infer"
    sent = [
        ("/predict", lines, "application/x-ndjson", many),
        (infer, json.dumps(inference).encode(), "application/json", 2),
        (infer, json.dumps(wide).encode(), "application/json", many),
    ]
    assert len(sent) == FURTHER
    assert len(lines) > 500_000
    total = 0
    for path, body, kind, rows in sent:
        request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", body, {"content-type": kind})
        with urllib.request.urlopen(request) as reply:
            assert reply.read()
        total += rows
    wait_for("the comparison", lambda: shadow_of(service).equal >= before + total)
    return total


def with_shadow(order: ServiceOrder, folder: Path, generation: int) -> ServiceOrder:
    version = ServedVersion(label=f"weather/other@{generation}", folder=str(folder))
    return replace(order, shadow=ShadowOrder(version=version), generation=generation)


def shadow_of(service: Service) -> ShadowReport:
    report = service.report().shadow
    assert report is not None
    return report


def pid_of_shadow(service: Service) -> int:
    children = Path(f"/proc/{service.parent.pid}/task/{service.parent.pid}/children").read_text().split()
    found = [
        one for one in children if b"gridmill.serving.shadow" in Path(f"/proc/{one}/cmdline").read_bytes()
    ]
    return int(found[0]) if found else 0


def test_a_shadow_is_compared_and_never_changes_an_answer(tmp_path: Path) -> None:
    # a shadow hangs after five times as long; on a busy machine, its low priority makes it silent for seconds
    order = order_of(linear_model(tmp_path / "m"), hang_seconds=6.0)
    same = with_shadow(order, linear_model(tmp_path / "same"), 2)
    encodings = [
        *(Encoding(column=name, type="double") for name in FIELDS[:2]),
        Encoding(column="city", type="string", categories=CITIES),
    ]
    other = with_shadow(order, sum_model(tmp_path / "other", encodings), 3)
    with Service(tmp_path / "s", order) as service:
        port = service.report().port
        before = answers(port)
        rows = sum(len(json.loads(body)["rows"]) for body in BODIES)

        service.update(same)
        service.wait_ready()
        wait_for("the shadow", lambda: shadow_of(service).is_ready)
        assert answers(port) == before
        wait_for("the comparison", lambda: shadow_of(service).requests == len(BODIES))
        report = shadow_of(service)
        assert (report.equal, report.different, report.failed, report.dropped) == (rows, 0, 0, 0)
        assert 0 < report.p50_seconds <= report.p99_seconds
        assert 0 < report.served_p50_seconds <= report.served_p99_seconds

        # large requests, and those of the Open Inference Protocol, are compared too
        compared = rows + compare_further(service, port, rows)
        assert (shadow_of(service).equal, shadow_of(service).dropped) == (compared, 0)

        # a process that hangs is replaced, and requests do not wait for it
        first = pid_of_shadow(service)
        os.kill(first, signal.SIGSTOP)
        assert answers(port) == before
        wait_for("another process", lambda: pid_of_shadow(service) not in (0, first), 120)
        compared = len(BODIES) + FURTHER
        wait_for("the copies that waited", lambda: shadow_of(service).requests >= compared + 1)
        restarts = shadow_of(service).restarts
        assert restarts >= 1
        os.kill(pid_of_shadow(service), signal.SIGKILL)
        assert answers(port) == before
        wait_for("the reason", lambda: shadow_of(service).restarts > restarts)

        service.update(other)
        service.wait_ready()
        wait_for("the other shadow", lambda: shadow_of(service).is_ready)
        assert answers(port) == before
        wait_for("the comparison", lambda: shadow_of(service).requests == len(BODIES))
        report = shadow_of(service)
        assert (report.label, report.equal, report.different) == ("weather/other@3", 0, rows)
        # temp + 10 · wind speed + 100 against temp + wind speed + 1
        assert report.mean_difference == pytest.approx(117)
        assert report.largest_difference == pytest.approx(117)
        text = metrics_of(port)
        assert "weather/other@2" not in text
        assert 'gridmill_shadow_difference_max{replica="shadow",version="weather/other@3"} 117' in text
        assert f'gridmill_shadow_rows_total{{version="weather/other@3",result="different"}} {rows}' in text

        service.update(with_shadow(order, tmp_path / "nothing", 4))
        service.wait_ready()
        wait_for("the reason", lambda: "do not exist" in shadow_of(service).problem)
        assert answers(port) == before
        assert service.report().problem == ""
        service.update(replace(order, generation=5))
        service.wait_ready()
        assert service.report().shadow is None
        assert "gridmill_shadow" not in metrics_of(port)
        assert pid_of_shadow(service) == 0


def test_a_shadow_of_a_home_is_shown_promoted_and_ended(place: Place) -> None:
    versions_of_a_model(place)
    view = place.json("start", "service", "rain", "--model", "w/m@1")
    port = view["service"]["port"]
    with Load(port, BODY, clients=2) as load:
        view = place.json("update", "service", "rain", "--shadow", "w/m@2", "--shadow-weight", "50")
        assert (view["state"], view["service"]["shadow"]["version"]) == ("running", "w/m@2")

        def compared() -> bool:
            report = place.json("show", "service", "rain")["service"]["report"]
            return bool(report["shadow"] and report["shadow"]["requests"])

        assert eventually(compared)
        shown = place.gridmill("show", "service", "rain").stdout
        assert "w/m@2 gets copies of 50 %" in shown
        assert "compared" in shown
        view = place.json("promote", "service", "rain")
        assert (view["service"]["canary"], view["service"]["shadow"]) == ("w/m@2", None)
        view = place.json("rollback", "service", "rain")
        assert (view["service"]["version"], view["service"]["canary"]) == ("w/m@1", "")
    assert load.failures == []
    assert set(load.statuses) == {200}
    assert place.json("stop", "service", "rain")["state"] == "stopped"


@pytest.mark.long
def test_the_refusal_of_a_shadow_without_memory_has_the_commands_that_give_it_memory(place: Place) -> None:
    versions_of_a_model(place)
    least = 2 * REPLICA_BYTES // MIB + 8
    resource = ("configure", "resource", "servers", "--type", "service", "--memory", f"{least}MiB")
    assert place.gridmill(*resource).returncode == 0
    place.json("start", "service", "rain", "--model", "w/m@1", "--resource", "servers")
    update = ("update", "service", "rain", "--shadow", "w/m@2")
    refused = place.gridmill(*update)
    assert refused.returncode == 2, refused.stderr
    assert "w/m@2 cannot be a shadow: 1 replicas with all versions need about" in refused.stderr
    commands = refused.stderr.partition("repeat the update: ")[2].strip().split("; ")
    assert [one.split()[1] for one in commands] == ["stop", "alter", "start"]
    for command in commands:
        done = place.gridmill(*command.split()[1:])
        assert done.returncode == 0, (command, done.stderr)
    view = place.json("show", "service", "rain")
    assert (view["state"], view["service"]["shadow"]) == ("running", None)

    # the pod has room now, and the service gets it without another start
    with Load(view["service"]["port"], BODY, clients=2) as load:
        view = place.json(*update)
        assert (view["state"], view["service"]["shadow"]["version"]) == ("running", "w/m@2")
        assert eventually(
            lambda: (place.json("show", "service", "rain")["service"]["report"]["shadow"] or {}).get(
                "requests"
            )
        )
    assert (load.failures, set(load.statuses)) == ([], {200})
    shown = place.gridmill("show", "service", "rain").stdout
    assert "shadow times" in shown
    assert "; served: median" in shown
    assert place.json("stop", "service", "rain")["state"] == "stopped"
