"""Files that changed lately wait: they are not loaded, but counted and shown, until they are settled."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from tests.kit.sink_case import SinkCase

from gridmill.domain.artifact import Artifact, Output
from gridmill.domain.remarks import remarks_of
from gridmill.domain.source import Format, Source, SqlSource
from gridmill.errors import InputError, UnavailableError

LONG, SHORT = 3600.0, 1e-6


@pytest.fixture
def case(tmp_path: Path) -> SinkCase:
    return SinkCase(tmp_path)


def said(output: Output) -> list[str]:
    version = Artifact(
        id="p/s@1",
        name="p/s",
        number=1,
        output=output,
        fingerprint="",
        run_id="",
        attempt_id="",
        created=0.0,
    )
    return [remark.text for remark in remarks_of(version)]


def test_what_waits_is_decided_by_the_clock_alone() -> None:
    source = Source(path="x", settled_seconds=30.0)
    assert source.waits(100 * 10**9, 129.0)
    assert not source.waits(100 * 10**9, 130.0)
    assert source.waits(100 * 10**9, 99.0)  # a server whose clock is ahead
    assert not source.waits(0, 129.0)
    assert not Source(path="x").waits(100 * 10**9, 100.0)


@pytest.mark.parametrize("form", [None, Format.FILES])
def test_a_file_that_changed_lately_waits_and_is_loaded_later(case: SinkCase, form: Format | None) -> None:
    case.write("a.csv", "x\n1\n")
    case.write("c.csv", "x\n1\n")
    case.load(settled_seconds=SHORT, format=form)
    case.write("b.csv", "x\n2\n")
    case.write("a.csv", "x\n3\n")
    output = case.load(settled_seconds=LONG, format=form)
    assert output.rows == 2
    assert said(output) == ["waiting: 3 files changed less than 3600s ago"]
    output = case.load(settled_seconds=SHORT, format=form)
    assert not said(output)
    assert not output.details["loaded_anew"]
    assert case.table().num_rows == (3 if form is None else 4)


def test_there_may_be_nothing_to_load_yet(case: SinkCase) -> None:
    case.write("a.csv", "x\n1\n")
    with pytest.raises(UnavailableError, match="waiting: 1 file changed less than 3600s ago"):
        case.load(settled_seconds=LONG)
    assert case.load(settled_seconds=SHORT).rows == 1


def test_a_table_is_not_loaded_anew_from_half_a_file(case: SinkCase) -> None:
    case.write("a.csv", "x\n1\n")
    case.load(settled_seconds=SHORT)
    with pytest.raises(UnavailableError, match="must be loaded again from the beginning; waiting: 1 file"):
        case.load(settled_seconds=LONG, add={"y": "1"})
    assert case.rows() == [{"x": 1}]


def test_a_file_that_is_gone_while_another_waits_keeps_its_rows(case: SinkCase) -> None:
    case.write("a.csv", "x\n1\n")
    gone = case.write("b.csv", "x\n2\n")
    case.load(settled_seconds=SHORT)
    gone.unlink()
    case.write("a.csv", "x\n3\n")
    output = case.load(settled_seconds=LONG)
    assert output.details["vanished"] == 1
    assert sorted(row["x"] for row in case.rows()) == [1, 2]


@contextmanager
def served(headers: dict[str, str], asked: list[str]) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            body = f"x\n{len(asked)}\n".encode()
            self.send_response(200)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/a.csv"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_what_a_server_says_changed_lately_waits(case: SinkCase) -> None:
    headers, asked = {"Last-Modified": formatdate(0, usegmt=True)}, list[str]()
    with served(headers, asked) as url:
        case.load(url, settled_seconds=LONG)
        headers["Last-Modified"] = formatdate(usegmt=True)
        output = case.load(url, settled_seconds=LONG)
        assert said(output) == ["waiting: 1 file changed less than 3600s ago"]
        assert case.rows() == [{"x": 1}]
        del headers["Last-Modified"]  # nobody knows
        case.load(url, settled_seconds=LONG)
        assert case.rows() == [{"x": 3}]


def test_it_goes_with_files_alone() -> None:
    source = Source(sql=SqlSource(url="sqlite:///x.db", table="t"), settled_seconds=30.0)
    with pytest.raises(InputError, match="cannot be used together with `sql`"):
        source.check()
