"""A service that is sized by a measurement, and whose replicas follow the load."""

import json
import socket

import pytest

from tests.e2e.conftest import Place, eventually
from tests.e2e.test_services import BODY, PIPELINE
from tests.kit.services import Load

pytestmark = pytest.mark.e2e


def test_a_service_is_sized_by_a_measurement_that_is_kept_and_scales_to_zero(place: Place) -> None:
    place.write(
        "\n".join(
            [
                "day,x,y",
                *[f"2024-{1 + d // 28:02}-{1 + d % 28:02},{d % 7},{d % 7 * 2}" for d in range(112)],
                "",
            ]
        ),
        "rows.csv",
    )
    assert place.gridmill("run", place.write(PIPELINE)).returncode == 0
    shown = place.gridmill(
        "configure", "resource", "servers", "--type", "service", "--model", "w/m@1", "--rate", "20"
    )
    assert shown.returncode == 0, shown.stderr
    assert "service of w/m@1: 1 replica, 0.1" in shown.stdout
    assert "for 20 requests/s, expected p99" in shown.stdout
    assert "one replica served" in shown.stdout
    runs = place.json("list", "runs")
    refused = place.gridmill(
        "start", "service", "rain", "--model", "w/m@1", "--resource", "servers", "--rate", "9000000"
    )
    assert refused.returncode != 0
    assert "cannot serve 9,000,000 requests/s of w/m@1; it can serve" in refused.stderr

    view = place.json(
        "start", "service", "rain", "--model", "w/m@1", "--resource", "servers", "--rate", "20",
        "--replicas", "0..1",
    )  # fmt: skip
    # the service has a run; the measurement was not repeated
    assert len(place.json("list", "runs")) == len(runs) + 1
    service = view["service"]
    assert (view["state"], service["replicas"], service["scaling"]["least"]) == ("running", 1, 0)
    assert service["size"]["cpus"] <= 1
    report = service["report"]
    assert report["replicas"][0]["memory_bytes"] < service["size"]["replica_bytes"]
    with Load(service["port"], BODY, clients=2) as load:
        load.wait_for_more(20)
    assert (load.failures, set(load.statuses)) == ([], {200})
    text = place.gridmill("show", "service", "rain").stdout
    assert "of 0..1 ready" in text
    assert "can serve" in text
    fixed = place.json("update", "service", "rain", "--replicas", "1")
    assert fixed["service"]["scaling"] is None
    with Load(service["port"], BODY, clients=2) as load:
        load.wait_for_more(5)
        grown = place.json("update", "service", "rain", "--rate", "30", "--replicas", "2")
        load.wait_for_more(20)
    assert (load.failures, set(load.statuses)) == ([], {200})
    assert (grown["state"], grown["ready"], grown["service"]["rate"]) == ("running", 2, 30)
    assert grown["service"]["size"]["memory_bytes"] > service["size"]["memory_bytes"]
    assert grown["service"]["run_id"] == service["run_id"]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        refused = place.gridmill("update", "service", "rain", "--port", port, "--max-batch", "7")
        assert refused.returncode != 0
        assert port in refused.stderr
    with Load(service["port"], BODY, clients=2) as load:
        back = place.json("rollback", "service", "rain")
        load.wait_for_more(20)
    assert (load.failures, set(load.statuses)) == ([], {200})
    assert (back["state"], back["service"]["port"]) == ("running", service["port"])
    assert back["service"]["settings"]["max_batch"] is None
    assert place.json("stop", "service", "rain")["state"] == "stopped"
    assert eventually(lambda: json.dumps(place.json("show", "service", "rain")["state"]) == '"stopped"')
