"""A bucket that does not answer delays neither other buckets nor the list for the watcher."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gridmill.domain.farm_protocol import ResultExport
from gridmill.domain.pod_protocol import PodEvent
from gridmill.errors import UnavailableError
from gridmill.farm.result_export import EXPORTABLE, EXPORTING, ExportGrant, ExportGrants, ResultExporter


class Sandbox:
    """The sandbox of a tenant, which uploads to two buckets."""

    def __init__(self) -> None:
        self.over, self.asked = threading.Event(), list[str]()

    @property
    def files(self) -> "Sandbox":
        return self

    def last_words(self, pod: str) -> tuple[PodEvent, ...]:
        return ()

    def put_object(self, url: str, content: bytes) -> None:
        self.asked.append(url)
        if "dead" in url:
            self.over.wait(60.0)
            raise UnavailableError("no answer")


def grant(attempt_id: str, server: str) -> ExportGrant:
    urls = tuple(f"https://{server}/{attempt_id}/{number}" for number in range(3))
    export = ResultExport(pod_id="p-1", uri="", urls=urls, after_seconds=120.0)
    return ExportGrant(tenant="t", attempt_id=attempt_id, export=export)


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    made = Sandbox()
    yield made
    made.over.set()


def test_a_bucket_that_does_not_answer_delays_no_other(tmp_path: Path, sandbox: Sandbox) -> None:
    grants, now = ExportGrants(), [0.0]
    exporter = ResultExporter(grants, lambda _: 0.0, lambda _: sandbox, tmp_path, lambda: now[0], 0.2)
    for name in ("a-1", "a-2"):
        grants.put(grant(name, "dead.example"))
    grants.put(grant("a-3", "good.example"))
    assert exporter.tick()
    while not grants.is_checked(grant("a-3", "good.example")):
        exporter.tick()
    exporter.tick()
    assert (tmp_path / EXPORTABLE).read_text() == "a-3\n"
    assert [one for one in sandbox.asked if "dead" in one] == ["https://dead.example/a-1/1"]
    sandbox.over.set()
    while exporter.tick(rests=True):
        pass
    asked = len(sandbox.asked)
    assert exporter.tick(rests=True), "a bucket that failed is not used for a time"
    assert len(sandbox.asked) == asked
    now[0] += 15.0
    while exporter.tick(rests=True):
        pass
    assert len(sandbox.asked) == asked + 2


def test_the_end_of_one_upload_does_not_hide_another(tmp_path: Path) -> None:
    exporter = ResultExporter(ExportGrants(), lambda _: 0.0, lambda _: Sandbox(), tmp_path)
    mark = tmp_path / EXPORTING

    @contextmanager
    def shown() -> Iterator[None]:
        with exporter._held():
            until = threading.Event()
            while not mark.exists():
                until.wait(0.01)
            yield

    with shown():
        with shown():
            pass
        assert mark.exists()
    assert not mark.exists()
