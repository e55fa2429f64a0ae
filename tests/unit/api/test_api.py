"""The REST API by itself: docs, errors, limits, the socket, and whatever schemathesis thinks of."""

import re
import stat
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, settings

from gridmill.api.app import BODY_BYTES, make_app
from gridmill.codec import encode
from gridmill.domain.job import CommandSpec, Job
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.views import ControlView
from gridmill.errors import InputError, UnavailableError
from gridmill.http.server import Server, serve
from gridmill.testing.fake_grid import FakeGrid

PIPELINE = Pipeline(name="p", jobs=(Job(name="a", command=CommandSpec(run="true")),))


class BrokenGrid(FakeGrid):
    """A grid with a defect."""

    def control(self) -> ControlView:
        raise RuntimeError("the secret detail")


TRIED = make_app(FakeGrid())


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> httpx.Client:
    path = tmp_path_factory.mktemp("api") / "s"
    app = make_app(BrokenGrid())
    app.openapi_schema = TRIED.openapi()  # the same routes: it takes seconds to make
    server = serve(app, socket_path=path)
    yield httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://localhost", timeout=120)
    server.stop()


schema = schemathesis.openapi.from_asgi("/openapi.json", TRIED)
# `coverage` would be ten thousand requests, nearly all of them of one body
schema.config.phases.update(phases=["fuzzing"])


@schema.parametrize()
@settings(max_examples=6, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_nothing_that_comes_in_is_a_server_error(case: schemathesis.Case) -> None:
    if "wait_seconds" in (case.query or {}):
        case.query["wait_seconds"] = 0
    answer = case.call_and_validate(checks=[schemathesis.checks.not_a_server_error])
    if answer.status_code == 422 and case.meta.generation.mode.is_positive:
        assert "there is no field" not in answer.json()["message"], "the document allows it"


@pytest.mark.parametrize(
    ("path", "methods"),
    [("/v1/pipelines", "GET, POST"), ("/v1/pipelines/p", "DELETE, GET"), ("/v1/runs/r/jobs", "GET")],
)
def test_a_wrong_method_is_answered_with_all_right_ones(
    served: httpx.Client, path: str, methods: str
) -> None:
    answer = served.request("PATCH", path)
    assert (answer.status_code, answer.headers["allow"]) == (405, methods)
    assert "/docs" in answer.json()["hint"]


def test_pages_run_no_scripts_and_load_nothing(served: httpx.Client) -> None:
    body, kind = encode(replace(PIPELINE, name="shown")), {"content-type": "application/json"}
    assert served.post("/v1/runs", content=body, headers=kind).status_code == 200
    for path in ("/docs", "/v1/runs/shown-1/report"):
        page = served.get(path)
        assert page.status_code == 200
        assert page.headers["content-security-policy"].startswith("default-src 'none'; style-src")
        assert page.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("path", ["events", "jobs", "report", "jobs/a", ""])
def test_what_is_below_a_run_that_does_not_exist_is_not_found(served: httpx.Client, path: str) -> None:
    answer = served.get(f"/v1/runs/nobody-1/{path}".rstrip("/"))
    assert (answer.status_code, answer.json()["code"]) == (404, "not-found")


def test_docs_list_every_call_and_fetch_nothing(served: httpx.Client) -> None:
    page = served.get("/docs")
    assert page.status_code == 200
    for path in served.get("/openapi.json").json()["paths"]:
        assert path in page.text
    assert "<script" not in page.text
    assert not re.search(r"""(src|href|action)\s*=\s*["']?\s*(https?:)?//|url\(|@import""", page.text)


def test_a_defect_shows_no_detail(served: httpx.Client) -> None:
    answer = served.get("/v1/control")
    assert answer.status_code == 500
    assert answer.json()["code"] == "internal"
    assert "secret detail" not in answer.text
    assert "Traceback" not in answer.text


def test_a_wrong_body_names_its_place(served: httpx.Client) -> None:
    answer = served.post("/v1/runs", json={"name": "p", "jobs": [{"name": 3}]})
    assert answer.status_code == 422
    assert answer.json()["code"] == "invalid-input"
    assert answer.json()["place"] == "body.jobs.0.name"


JOB = {"name": "a", "command": {"run": "true"}}


@pytest.mark.parametrize(
    ("method", "path", "body", "place", "says"),
    [
        (
            "POST",
            "/v1/runs",
            {"name": "p", "jobs": [{**JOB, "timeout": "5m"}]},
            "body.jobs.0.timeout",
            "timeout_seconds",
        ),
        ("POST", "/v1/runs", {"name": "p", "jobs": [], "jbos": []}, "body.jbos", "`jobs`"),
        (
            "POST",
            "/v1/plans",
            {"name": "p", "jobs": [{"name": "a", "command": {"run": "true", "rn": 1}}]},
            "body.jobs.0.command.rn",
            "`run`",
        ),
        ("POST", "/v1/runs?forse=true", {"name": "p", "jobs": [JOB]}, "query.forse", "`force`"),
        ("GET", "/v1/runs?limits=3", None, "query.limits", "`limit`"),
        (
            "POST",
            "/v1/backfills",
            {"backfill": {"name": "p", "begins": "2013", "ends": "2014", "evry": 3}, "chunks": []},
            "body.backfill.evry",
            "every_",
        ),
        (
            "PUT",
            "/v1/resources/a",
            {"name": "a", "type": "sink", "site_settings": {}},
            "body.site_settings",
            "/docs",
        ),
    ],
)
def test_an_unknown_field_is_refused_by_its_name(
    served: httpx.Client, method: str, path: str, body: object, place: str, says: str
) -> None:
    answer = served.request(method, path, json=body)
    said = answer.json()
    assert answer.status_code == 422
    assert said["place"] == place
    assert says in said["message"] + said["hint"]


@pytest.mark.parametrize(
    ("query", "place"),
    [
        ("cursor=nonsense", "cursor"),
        ("cursor=", "query.cursor"),
        ("limit=1001", "query.limit"),
        ("limit=0", "query.limit"),
    ],
)
def test_a_page_that_cannot_be_is_refused(served: httpx.Client, query: str, place: str) -> None:
    answer = served.get(f"/v1/runs?{query}")
    assert (answer.status_code, answer.json()["code"], answer.json()["place"]) == (
        422,
        "invalid-input",
        place,
    )


def test_a_list_is_read_page_by_page(served: httpx.Client) -> None:
    for name in "abc":
        served.put(f"/v1/resources/{name}", json={"name": name, "type": "command"})
    first = served.get("/v1/resources?limit=2").json()
    served.delete("/v1/resources/b")
    rest = served.get("/v1/resources", params={"cursor": first["next_cursor"]}).json()
    assert [one["name"] for one in first["items"]] == ["a", "b"]
    assert [one["name"] for one in rest["items"]] == ["c"]
    assert rest["next_cursor"] is None
    other = served.get("/v1/sites", params={"cursor": first["next_cursor"]})
    assert (other.status_code, other.json()["place"]) == (422, "cursor")


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/nothing", 404, "not-found"),
        ("DELETE", "/v1/control", 405, "invalid-input"),
        ("GET", "/v1/runs/none-1", 404, "not-found"),
        ("GET", "/v1/runs?limit=0", 422, "invalid-input"),
        ("GET", "/v1/bundles/nohash", 422, "invalid-input"),
    ],
)
def test_every_error_has_the_one_body(
    served: httpx.Client, method: str, path: str, status: int, code: str
) -> None:
    answer = served.request(method, path)
    assert (answer.status_code, answer.json()["code"]) == (status, code)


def test_a_body_that_is_too_large_is_refused_declared_or_not(served: httpx.Client) -> None:
    declared = served.post("/v1/runs", content=b" " * (BODY_BYTES + 1))
    assert declared.status_code == 413

    def pieces() -> object:
        for _ in range(17):
            yield b" " * 2**20

    undeclared = served.post("/v1/runs", content=pieces())
    assert undeclared.status_code == 413


def test_the_resource_in_the_path_is_the_one_in_the_body(served: httpx.Client) -> None:
    answer = served.put("/v1/resources/a", json={"name": "b", "type": "sink"})
    assert answer.json()["place"] == "body.name"


def test_the_socket_is_its_owners_and_a_stale_one_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_text("stale")
    server = serve(make_app(FakeGrid()), socket_path=path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    server.stop()
    assert not path.exists()
    server.stop()


def test_a_long_poll_does_not_hold_up_others_nor_the_end(tmp_path: Path) -> None:
    grid = FakeGrid()
    grid.start_run(PIPELINE)
    server = serve(make_app(grid), socket_path=tmp_path / "s")
    last = grid.events("p-1")[-1].id
    pollers = _poll(server, tmp_path / "s", last, count=60)
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(tmp_path / "s")), timeout=120) as client:
        assert client.get("http://localhost/v1/runs").status_code == 200
    assert all(poller.is_alive() for poller in pollers)  # they last 60 s
    server.stop()
    for poller in pollers:
        poller.join(120)
        assert not poller.is_alive()


def _poll(server: Server, path: Path, after: str, count: int) -> list:
    import threading

    def poll() -> None:
        with (
            httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), timeout=120) as client,
            suppress(httpx.TransportError),  # the server stops while some still ask
        ):
            client.get("http://localhost/v1/runs/p-1/events", params={"after": after, "wait_seconds": 60})

    threads = [threading.Thread(target=poll) for _ in range(count)]
    for thread in threads:
        thread.start()
    return threads


def test_addresses_that_cannot_be_are_said(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        serve(make_app(FakeGrid()), socket_path=tmp_path / ("x" * 120))
    assert "GRIDMILL_HOME" in caught.value.hint
    server = serve(make_app(FakeGrid(), token="t"), port=0)
    taken = int(server.address.rpartition(":")[2])
    with pytest.raises(UnavailableError):
        serve(make_app(FakeGrid(), token="t"), port=taken)
    server.stop()


def test_a_run_posted_as_json_starts(served: httpx.Client) -> None:
    answer = served.post("/v1/runs", content=encode(PIPELINE), headers={"Content-Type": "application/json"})
    assert answer.json()["run"]["id"] == "p-1"


@pytest.mark.parametrize(("former", "new"), [("export", "backup"), ("import", "restore")])
def test_a_former_path_gives_the_new_one(served: httpx.Client, former: str, new: str) -> None:
    answer = served.post(f"/v1/projects/{former}", params={"path": "p.zip"})
    assert answer.status_code == 422
    assert answer.json()["message"] == f"/v1/projects/{former} is now /v1/{new}"
