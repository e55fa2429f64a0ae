"""The logged requests of a service become training data, with the pipeline of the page on logged requests."""

import http.client
import json
import re
from pathlib import Path

import pytest

from tests.e2e.conftest import Place
from tests.e2e.test_services import versions_of_a_model

pytestmark = pytest.mark.e2e
PAGE = Path(__file__).parents[2] / "docs/how-to/requests-as-data.md"
REQUESTS = 40


def pipeline_of_the_page() -> str:
    (block,) = re.findall(r"```yaml\n(pipeline: rain-log\n.*?)```", PAGE.read_text("utf-8"), re.S)
    return block


def test_logged_requests_are_loaded_once_and_joined_with_their_outcomes(place: Place) -> None:
    versions_of_a_model(place)
    options = ("--log-requests", "1", "--log-bodies")
    port = place.json("start", "service", "rain", "--model", "w/m@1", *options)["service"]["port"]
    send(port, range(REQUESTS))
    assert place.json("stop", "service", "rain")["state"] == "stopped"

    # the labels of some requests are known
    known = [f"id-{number},{number % 3}" for number in range(0, REQUESTS, 2)]
    place.write("\n".join(["request_id,rained", *known, ""]), "outcomes.csv")
    file = place.write(pipeline_of_the_page())
    done = place.gridmill("run", file)
    assert done.returncode == 0, done.stdout + done.stderr
    loaded = rows_of(place)
    assert len(loaded) == REQUESTS
    first = next(one for one in loaded if one["request_id"] == "id-4")
    assert (first["x"], first["version"], first["service"]) == (4.0, "w/m@1", "rain")
    assert isinstance(first["prediction"], float)
    examples = place.json("show", "dataset", "rain-log/examples")
    assert examples["output"]["rows"] == len(known), examples

    # further requests are in further files, and no row is loaded twice
    place.json("start", "service", "rain")
    send(port, range(REQUESTS, REQUESTS + 5))
    place.json("stop", "service", "rain")
    assert place.gridmill("run", file).returncode == 0
    again = rows_of(place)
    assert sorted(one["request_id"] for one in again) == sorted(f"id-{n}" for n in range(REQUESTS + 5))


def rows_of(place: Place) -> list[dict]:
    """The rows of the table of requests."""
    shown = place.json("preview", "rain-log/requests", "--rows", "100")
    names = [column["name"] for column in shown["columns"]]
    return [dict(zip(names, row, strict=True)) for row in shown["rows"]]


def send(port: int, numbers: range) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    for number in numbers:
        body = json.dumps({"rows": [{"x": float(number), "y": 1.0}]})
        connection.request("POST", "/predict", body, {"X-Request-Id": f"id-{number}"})
        response = connection.getresponse()
        response.read()
        assert response.status == 200
    connection.close()
