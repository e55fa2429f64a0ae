"""A sink over a real HTTP server that can fail in the ways servers do."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from gridmill.domain.artifact import Output
from gridmill.domain.sink import ColumnType, SinkSpec
from gridmill.domain.source import Source
from gridmill.errors import DataError, InputError, UnavailableError
from gridmill.jobs.sink.run import run
from tests.kit.sink_case import SinkCase

pytestmark = pytest.mark.e2e

CSV = "a,b\n" + "".join(f"{n},x\n" for n in range(20_000))


@dataclass
class Site:
    """What the server does. `faults` go one a request: a status, 'cut' in the middle of a body, or what is to
    happen before it answers 503."""

    server: ThreadingHTTPServer
    body: bytes = CSV.encode()
    tag: str = '"one"'
    faults: list[object] = field(default_factory=list)
    seen: list[dict[str, str]] = field(default_factory=list)
    sent_bytes: int = 0
    redirect: str = ""
    ranges: bool = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"


class Handler(BaseHTTPRequestHandler):
    site: Site

    def do_GET(self) -> None:
        site = self.site
        site.seen.append({name.lower(): value for name, value in self.headers.items()})
        fault = site.faults.pop(0) if site.faults else None
        if isinstance(fault, int):
            self.send_error(fault)
        elif callable(fault):
            fault()
            self.send_error(503)
        elif site.redirect and self.path == "/moved.csv":
            self.send_response(302)
            self.send_header("Location", site.redirect)
            self.end_headers()
        elif self.headers.get("If-None-Match") == site.tag:
            self.send_response(304)
            self.end_headers()
        else:
            self.give(site, cut=fault == "cut")

    def give(self, site: Site, *, cut: bool) -> None:
        start = 0
        asked = self.headers.get("Range")
        if asked and site.ranges and self.headers.get("If-Range") == site.tag:
            start = int(asked.removeprefix("bytes=").rstrip("-"))
        body = site.body[start:]
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(site.body) - 1}/{len(site.body)}")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", site.tag)
        self.end_headers()
        sent = body[: len(body) // 2] if cut else body
        site.sent_bytes += len(sent)  # before the client can have it all
        self.wfile.write(sent)
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture
def site() -> Iterator[Site]:
    handler = type("OneHandler", (Handler,), {})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    handler.site = Site(server)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield handler.site
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def case(tmp_path: Path) -> SinkCase:
    return SinkCase(tmp_path)


def load(case: SinkCase, url: str | tuple[str, ...], **source: object) -> Output:
    return run(case.context(SinkSpec(source=Source(path=url, **source)))).outputs[0]


def test_what_stands_is_not_fetched_again_and_what_changed_replaces_its_rows(
    site: Site, case: SinkCase
) -> None:
    assert load(case, f"{site.url}/a.csv").rows == 20_000
    assert load(case, f"{site.url}/a.csv").table_version == 1
    assert site.sent_bytes == len(site.body)
    site.body, site.tag = b"a,b\n7,z\n", '"two"'
    assert load(case, f"{site.url}/a.csv").table_version == 2
    assert case.rows() == [{"a": 7, "b": "z"}]


def test_a_download_goes_on_where_it_broke_off(site: Site, case: SinkCase) -> None:
    site.faults = ["cut", 503, "cut"]
    assert load(case, f"{site.url}/a.csv").rows == 20_000
    assert site.sent_bytes == len(site.body)
    assert "range" in site.seen[2]


def test_without_ranges_it_begins_again(site: Site, case: SinkCase) -> None:
    site.faults, site.ranges = ["cut"], False
    assert load(case, f"{site.url}/a.csv").rows == 20_000


def test_a_file_that_changed_while_it_was_fetched_is_not_mixed(site: Site, case: SinkCase) -> None:
    def change() -> None:
        site.body, site.tag = CSV.replace("x", "y").encode(), '"two"'

    site.faults = ["cut", change]
    load(case, f"{site.url}/a.csv")
    assert len(site.seen) == 3
    assert {row["b"] for row in case.rows()} == {"y"}


@pytest.mark.parametrize(
    ("faults", "kind", "said"),
    [
        ([404], DataError, "the server answers 404 Not Found"),
        ([401], InputError, "the server answers 401 Unauthorized"),
        ([503] * 9, UnavailableError, "cannot be fetched: the server answers 503"),
    ],
)
def test_what_goes_wrong_is_said(
    site: Site, case: SinkCase, faults: list[object], kind: type[Exception], said: str
) -> None:
    site.faults = faults
    with pytest.raises(kind, match=said) as caught:
        load(case, f"{site.url}/a.csv")
    assert f"{site.url}/a.csv" in str(caught.value)


def test_nobody_there(case: SinkCase) -> None:
    with pytest.raises(UnavailableError, match="cannot be fetched"):
        load(case, "http://127.0.0.1:1/a.csv")


def test_secrets_go_to_the_server_that_is_named_only(
    site: Site, case: SinkCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN_OF_THIS_TEST", "hush")
    site.redirect = f"http://localhost:{site.server.server_port}/a.csv"
    headers = {"Authorization": "Bearer ${env:TOKEN_OF_THIS_TEST}"}
    assert load(case, f"{site.url}/moved.csv", headers=headers).rows == 20_000
    assert [request.get("authorization") for request in site.seen] == ["Bearer hush", None]


def test_a_changed_declaration_fetches_what_stands_again(site: Site, case: SinkCase) -> None:
    load(case, f"{site.url}/a.csv")
    context = case.context(SinkSpec(source=Source(path=f"{site.url}/a.csv"), select=("b",)))
    assert run(context).outputs[0].rows == 20_000
    assert list(case.table().column_names) == ["b"]


def test_a_header_that_cannot_be_sent_is_not_told(
    site: Site, case: SinkCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN_OF_THIS_TEST", "hush\n")
    headers = {"Authorization": "Bearer ${env:TOKEN_OF_THIS_TEST}"}
    with pytest.raises(InputError, match="line break") as caught:
        load(case, f"{site.url}/a.csv", headers=headers)
    assert "hush" not in f"{caught.value}{caught.value.hint}"
    assert site.seen == []


def test_a_url_that_is_written_twice_is_loaded_once(site: Site, case: SinkCase) -> None:
    url = f"{site.url}/a.csv"
    assert load(case, (url, url)).rows == 20_000


def test_a_file_without_rows_makes_no_version_at_each_look(site: Site, case: SinkCase) -> None:
    site.body = b"a,b\n"
    columns = {"a": ColumnType.INTEGER, "b": ColumnType.STRING}
    spec = SinkSpec(source=Source(path=f"{site.url}/a.csv"), columns=columns)
    first = run(case.context(spec)).outputs[0].table_version
    assert run(case.context(spec)).outputs[0].table_version == first
