"""A plan of sources elsewhere: real servers that are quick, slow, down, or hold more than is fetched."""

import bz2
import gzip
import lzma
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random

import obstore
import pytest
from obstore.store import S3Store

from gridmill.declarations import read_pipeline
from gridmill.domain.preflight import PreflightRequest, PreflightResult, preflight_question, show_finding
from gridmill.jobs.preflight.remote import MOST_BYTES
from gridmill.jobs.preflight.run import check
from gridmill.storage.preflight_process import ask
from tests.kit.objectstore import HOW_TO_GET_IT, KEYS, make_bucket, object_store
from tests.kit.ports import free_port

pytestmark = pytest.mark.e2e

CSV = "day,city,note\n" + "".join(f'2024-01-{1 + n % 28:02d},a{n},"one\nor two"\n' for n in range(500))
MOST_SENT = MOST_BYTES + 12 * 2**20
"""What is under way when enough has come: buffers of both ends."""
MOST_SECONDS = 20.0
"""2 s for the source, and one or two for the process of the check, which takes longer on a busy machine."""
PIPELINE = """\
pipeline: p
jobs:
  far:
    sink:
      source: {SOURCE}
      columns: {COLUMNS}
  d: {dataset: {tables: [far], sql: "select city, note from far"}}
"""


@cache
def long_text() -> str:
    """Some times as much as is fetched; a row ends where a quoted text does."""
    rows = (f'2024-01-{1 + n % 28:02d},a{n},"one\nor {n}"\n' for n in range(400_000))
    return "day,city,note\n" + "".join(rows)


@pytest.fixture(params=["short", "long"])
def text(request: pytest.FixtureRequest) -> str:
    return CSV if request.param == "short" else long_text()


@dataclass
class Server:
    """`files` by path. `holds`: it answers once this is set. `sent_bytes` left it."""

    server: ThreadingHTTPServer
    files: dict[str, bytes] = field(default_factory=dict)
    holds: threading.Event | None = None
    begins: bool = False
    sent_bytes: int = 0

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/{path}"


class _Handler(BaseHTTPRequestHandler):
    at: Server

    def do_GET(self) -> None:
        body = self.at.files.get(self.path.removeprefix("/"))
        if body is None:
            self.send_error(404)
            return
        if self.at.holds is not None and not self.at.begins:
            self.at.holds.wait()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        try:
            for start in range(0, len(body), 2**16):
                self.at.sent_bytes += self.wfile.write(body[start : start + 2**16])
                self.wfile.flush()
                if self.at.holds is not None:
                    self.at.holds.wait()
        except OSError:
            self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture
def server() -> Iterator[Server]:
    handler = type("OneHandler", (_Handler,), {})
    made = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    handler.at = at = Server(made)
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield at
    if at.holds is not None:
        at.holds.set()
    made.shutdown()
    thread.join()
    made.server_close()


def planned(folder: Path, source: str, columns: str = "{}") -> tuple[list[str], PreflightResult]:
    """The errors of a plan, and all that it found. A busy machine is given more than 2 s."""
    return _planned(folder, source, columns, partial(check, patience_seconds=120.0))


def planned_in_time(folder: Path, source: str) -> tuple[list[str], PreflightResult]:
    """The same by the process that `plan` starts, which ends in bounded time."""
    begin = time.monotonic()
    found = _planned(folder, source, "{}", lambda question, work: ask(question))
    assert time.monotonic() - begin < MOST_SECONDS
    return found


def _planned(
    folder: Path, source: str, columns: str, checked: Callable[[PreflightRequest, Path], PreflightResult]
) -> tuple[list[str], PreflightResult]:
    file = folder / "p.yaml"
    file.write_text(PIPELINE.replace("{SOURCE}", source).replace("{COLUMNS}", columns))
    pipeline = read_pipeline(file)
    question = preflight_question(pipeline)
    assert question is not None
    found = checked(question, Path(tempfile.mkdtemp(dir=folder)))
    certain = (show_finding(pipeline, one) for one in found.findings if one.certain)
    return [text.replace(f"{folder}/", "") for text in certain], found


def why(found: PreflightResult) -> str:
    """Why the source was not checked."""
    [said] = [one.why for one in found.unchecked if one.job == "far"]
    return said


WRONG = [
    ("{}", []),
    ("{city: float}", ["p.yaml:6: jobs.far.sink.columns.city: ", "'a0' is not of type float"]),
    ("{town: string}", ["p.yaml:6: jobs.far.sink.columns.town: ", "there is no column 'town'"]),
]


@pytest.mark.parametrize(("columns", "words"), WRONG)
def test_what_is_wrong_with_a_file_by_http_is_found(
    server: Server, text: str, columns: str, words: list[str], tmp_path: Path
) -> None:
    server.files["a.csv"] = text.encode()
    errors, found = planned(tmp_path, server.url("a.csv"), columns)
    assert found.unchecked == ()
    assert len(errors) == bool(words), errors
    assert all(word in errors[0] for word in words), errors
    assert server.sent_bytes <= min(len(text), MOST_SENT)


PACKED: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": partial(lzma.compress, preset=0),
}


@pytest.mark.parametrize(
    "suffix", ["gz", pytest.param("bz2", marks=pytest.mark.long), pytest.param("xz", marks=pytest.mark.long)]
)
def test_of_a_compressed_file_the_beginning_is_read(server: Server, suffix: str, tmp_path: Path) -> None:
    draw = Random(1)
    noise = "".join(f"2024-01-01,a{n},{draw.randbytes(20).hex()}\n" for n in range(130_000))
    server.files[f"a.csv.{suffix}"] = PACKED[suffix](f"day,city,note\n{noise}".encode())
    assert len(server.files[f"a.csv.{suffix}"]) > MOST_BYTES
    errors, found = planned(tmp_path, server.url(f"a.csv.{suffix}"), "{city: float}")
    assert (len(errors), found.unchecked) == (1, ())
    assert planned(tmp_path, server.url(f"a.csv.{suffix}")) == ([], PreflightResult())


def test_the_beginning_of_other_files_says_nothing(server: Server, tmp_path: Path) -> None:
    server.files["a.parquet"] = bytes(20 * 2**20)
    errors, found = planned(tmp_path, server.url("a.parquet"))
    assert (errors, why(found)) == (
        [],
        "the first file of its source is larger than 2 MiB and cannot be read in part",
    )
    assert server.sent_bytes <= MOST_SENT


def test_later_files_may_show_more(server: Server, tmp_path: Path) -> None:
    """The first file alone does not show the order of day and month, nor that `city` is text."""
    server.files["a.csv"] = b"day,city,note\n01/02/2024,1,x\n"
    server.files["b.csv"] = b"day,city,note\n16/02/2024,a,x\n"
    errors, found = planned(tmp_path, f"[{server.url('a.csv')}, {server.url('b.csv')}]")
    assert errors == []
    assert "1 February 2024 or 2 January 2024" in why(found)


@pytest.mark.parametrize("begins", [False, True])
def test_a_slow_server_is_not_waited_for(server: Server, begins: bool, tmp_path: Path) -> None:
    """It does not answer at all, or stops in the middle of the file."""
    server.files["a.csv"], server.holds, server.begins = long_text().encode(), threading.Event(), begins
    errors, found = planned_in_time(tmp_path, server.url("a.csv"))
    assert (errors, why(found)) == ([], "its source did not answer within 2 s")


def test_a_server_that_is_down(tmp_path: Path) -> None:
    errors, found = planned_in_time(tmp_path, f"http://127.0.0.1:{free_port()}/a.csv")
    assert errors == []
    assert "refused" in why(found)


def test_a_file_that_does_not_exist(server: Server, tmp_path: Path) -> None:
    errors, _ = planned(tmp_path, server.url("b.csv"))
    assert len(errors) == 1
    assert errors[0].startswith("p.yaml:5: jobs.far.sink.source: ")
    assert "the server answers 404" in errors[0]


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with object_store() as found:
        if found is None:
            pytest.skip(HOW_TO_GET_IT)
        make_bucket(found, "data")
        yield found


@pytest.fixture
def bucket(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> S3Store:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    options = {"allow_http": True}
    return S3Store("data", endpoint=endpoint, virtual_hosted_style_request=False, client_options=options)


@pytest.mark.parametrize(("columns", "words"), WRONG)
def test_what_is_wrong_with_an_object_is_found(
    bucket: S3Store, endpoint: str, text: str, columns: str, words: list[str], tmp_path: Path
) -> None:
    obstore.put(bucket, "in/a.csv", text.encode())
    source = f"{{path: 's3://data/in/*.csv', endpoint: '{endpoint}'}}"
    errors, found = planned(tmp_path, source, columns)
    assert found.unchecked == ()
    assert len(errors) == bool(words), errors
    assert all(word in errors[0] for word in words), errors


@pytest.mark.usefixtures("bucket")
@pytest.mark.parametrize("path", ["data/none.csv", "data/none/*.csv", "nobody/a.csv"])
def test_an_object_that_does_not_exist(endpoint: str, path: str, tmp_path: Path) -> None:
    errors, _ = planned(tmp_path, f"{{path: 's3://{path}', endpoint: '{endpoint}'}}")
    assert len(errors) == 1
    assert errors[0].startswith("p.yaml:5: jobs.far.sink.source: ")
    assert "there is no such" in errors[0]


@pytest.mark.usefixtures("bucket")
def test_a_store_that_is_down(tmp_path: Path) -> None:
    source = f"{{path: 's3://data/a.csv', endpoint: 'http://127.0.0.1:{free_port()}'}}"
    errors, found = planned_in_time(tmp_path, source)
    assert errors == []
    assert "answer" in why(found)
