"""The logged rows of a replica: complete files with features and predictions, within a limit of bytes."""

import json
import os
import resource
import time
from pathlib import Path
from typing import Any

from tests.kit.served_models import linear_model, order_of, row, run

from gridmill.domain.service_log import READY_FOLDER, is_complete_name, writer_of
from gridmill.domain.serving import RequestLog
from gridmill.serving.log_counts import read_counts
from gridmill.serving.log_files import (
    COMPLETE_SECONDS,
    LEFT_SECONDS,
    MOST_WAITING,
    LineFiles,
    complete_left_files,
)
from gridmill.serving.metrics import Metrics
from gridmill.serving.request import Answer, Request
from gridmill.serving.request_log import RequestLogUpkeep, RequestLogWriter
from gridmill.serving.row_log import RowLogWriter

OWN, OTHER = writer_of("s-1.serve.2", "t"), writer_of("s-1.serve.1", "t")


def request(body: object, request_id: str = "r1") -> Request:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    kind = b"application/x-ndjson" if isinstance(body, bytes) else b"application/json"
    made = Request(
        method="POST",
        path="/predict",
        query={},
        headers={b"content-type": kind},
        body=content,
        request_id=request_id,
    )
    made.version = "w/m@3"
    return made


def answer(*values: float) -> bytes:
    return json.dumps({"predictions": [{"prediction": value} for value in values]}).encode()


def complete(folder: Path) -> list[Path]:
    return sorted(folder.glob("rows-*.jsonl"))


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in complete(folder) for line in path.read_text().splitlines()]


def writer(folder: Path, **settings: Any) -> RowLogWriter:
    return RowLogWriter(RequestLog(folder=str(folder), rows=True, **settings), "rain", 0)


def test_each_row_has_its_features_its_prediction_and_the_version(tmp_path: Path) -> None:
    log = writer(tmp_path)
    log.add(
        request({"rows": [{"temp": 1.5, "city": "Ulm"}, {"temp": None, "city": "Köln"}]}), answer(3.0, 4.0)
    )
    log.flush()
    assert complete(tmp_path) == []  # a sink must not see a file that still grows
    log.flush(ends=True)
    first, second = rows(tmp_path)
    assert first.pop("served_at") == second.pop("served_at") > "2024"
    own = {"service": "rain", "version": "w/m@3", "request_id": "r1"}
    assert first == {"temp": 1.5, "city": "Ulm", "prediction": 3.0, "request_row": 0, **own}
    assert second == {"temp": None, "city": "Köln", "prediction": 4.0, "request_row": 1, **own}


def test_a_feature_with_the_name_of_another_column_gets_a_prefix(tmp_path: Path) -> None:
    log = writer(tmp_path)
    log.add(request([{"version": "old", "prediction": 7}]), answer(3.0))
    log.flush(ends=True)
    (one,) = rows(tmp_path)
    assert (one["feature_version"], one["version"]) == ("old", "w/m@3")
    assert (one["feature_prediction"], one["prediction"]) == (7, 3.0)


def test_json_lines_with_an_error_are_left_out_and_a_sequence_is_its_last_row(tmp_path: Path) -> None:
    log = writer(tmp_path)
    lines = b'{"x": 1}\nnot json\n{"x": 3}\n'
    answers = b'{"prediction": 1.0}\n{"error": "wrong", "row": 1}\n{"prediction": 3.0}\n'
    log.add(request(lines), answers)
    log.add(request({"rows": [[{"x": 4}, {"x": 5}]]}), answer(9.0))
    log.add(request(b'[{"x": 6}, {"x": 7}]\n'), b'{"prediction": 8.0}\n')  # one line is one sequence
    log.flush(ends=True)
    logged = [(one["x"], one["prediction"]) for one in rows(tmp_path)]
    assert logged == [(1, 1.0), (3, 3.0), (5, 9.0), (7, 8.0)]


def test_a_large_or_an_old_file_is_complete_and_the_oldest_are_deleted(tmp_path: Path) -> None:
    now = [0.0]
    settings = RequestLog(folder=str(tmp_path), rows=True, file_bytes=1000, files=3)
    log = RowLogWriter(settings, "rain", 0, monotonic=lambda: now[0])
    for number in range(40):
        log.add(request([{"x": number}] * 4), answer(1.0, 2.0, 3.0, 4.0))
        log.flush()
    kept = rows(tmp_path)
    assert sum(path.stat().st_size for path in complete(tmp_path)) <= 3000
    assert 39 >= kept[-1]["x"] > kept[0]["x"] > 0
    log.add(request([{"x": 99}]), answer(1.0))
    log.flush()
    assert rows(tmp_path)[-1]["x"] != 99
    now[0] = COMPLETE_SECONDS
    log.flush()
    assert rows(tmp_path)[-1]["x"] == 99


def test_the_successor_of_a_killed_replica_completes_its_file_without_a_torn_line(tmp_path: Path) -> None:
    (tmp_path / "rows-0.part").write_bytes(b'{"x": 1}\n{"x": 2}\n{"x"')
    writer(tmp_path)
    assert rows(tmp_path) == [{"x": 1}, {"x": 2}]
    (tmp_path / "rows-0.part").write_bytes(b'{"x"')
    writer(tmp_path)
    assert rows(tmp_path) == [{"x": 1}, {"x": 2}]
    assert list(tmp_path.glob("*.part")) == []


def test_the_files_of_killed_replicas_that_have_no_successor_are_completed(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"rows-{number}.part").write_bytes(b'{"x": %d}\n{"x"' % number)
    complete_left_files(RequestLog(folder=str(tmp_path), rows=True), {1})
    assert rows(tmp_path) == [{"x": 0}, {"x": 2}]
    assert [path.name for path in tmp_path.glob("*.part")] == ["rows-1.part"]


def test_the_files_of_another_writer_are_completed_when_nothing_was_written_to_them_for_long(
    tmp_path: Path,
) -> None:
    own = RequestLog(folder=str(tmp_path), rows=True, writer=OWN, file_bytes=100, files=1)
    for name in (f"rows-{OTHER}-0", f"rows-{OTHER}-1", "rows-0", f"rows-{OWN}-0", f"rows-{OWN}-1"):
        (tmp_path / f"{name}.part").write_text(json.dumps({"x": name}) + "\n")
    for name in (f"rows-{OTHER}-0", "rows-0"):
        os.utime(tmp_path / f"{name}.part", (time.time() - LEFT_SECONDS,) * 2)
    complete_left_files(own, {0})
    assert {one["x"] for one in rows(tmp_path)} == {"rows-0", f"rows-{OTHER}-0", f"rows-{OWN}-1"}
    assert {path.stem for path in tmp_path.glob("*.part")} == {f"rows-{OTHER}-1", f"rows-{OWN}-0"}

    # the files of writers that ended have a limit together, and the newest are kept
    for path in tmp_path.glob("rows-*.jsonl"):
        path.unlink()
    for number in range(9):
        (tmp_path / f"rows-{OTHER}-{number % 2}-{number}.jsonl").write_text("x" * 40)
    complete_left_files(own, {0})
    assert [path.name for path in complete(tmp_path)] == [
        f"rows-{OTHER}-0-8.jsonl",
        f"rows-{OTHER}-1-7.jsonl",
    ]


def test_files_that_are_transferred_have_a_folder_and_rows_that_are_deleted_before_are_lost(
    tmp_path: Path,
) -> None:
    settings = {"writer": OWN, "is_transferred": True, "file_bytes": 1000, "files": 3}
    log = writer(tmp_path, **settings)
    for number in range(20):
        log.add(request([{"x": number}] * 2), answer(1.0, 2.0))
        log.flush()
    assert complete(tmp_path) == []
    kept = rows(tmp_path / READY_FOLDER)
    assert (log.lost, kept[-1]["x"]) == (40 - len(kept), 19)
    assert len(complete(tmp_path / READY_FOLDER)) == 2
    assert all(is_complete_name(path.name) for path in complete(tmp_path / READY_FOLDER))


def test_the_parent_process_completes_left_files_and_counts_what_killed_replicas_lost(tmp_path: Path) -> None:
    settings = RequestLog(folder=str(tmp_path / "log"), rows=True)
    upkeep = RequestLogUpkeep(tmp_path)
    upkeep.look(100.0, None, ())
    assert (upkeep.report, complete(tmp_path / "log")) == (None, [])
    for number in (0, 1):
        killed = LineFiles(settings, number, counts_folder=tmp_path)
        killed.add('{"x": 1}', '{"x": 2}')
        killed.flush()
        killed.add('{"x": 3}')
    with (tmp_path / "log/rows-1.part").open("a") as file:
        file.write('{"x"')
    upkeep.look(100.0, settings, {0})
    assert rows(tmp_path / "log") == [{"x": 1}, {"x": 2}]
    upkeep.look(110.0, settings, {0})
    assert upkeep.report is not None
    counts = upkeep.report.counts["rows"]
    assert (counts.logged, counts.written, dict(counts.lost)) == (6, 4, {"replica_killed": 1})
    (tmp_path / "log/rows-2.part").write_text('{"x": 2}\n')
    upkeep.look(120.0, settings, {0})
    assert len(rows(tmp_path / "log")) == 2
    upkeep.end()
    assert len(rows(tmp_path / "log")) == 5
    assert upkeep.report.is_last
    assert dict(upkeep.report.counts["rows"].lost) == {"replica_killed": 2}
    text = Metrics(tmp_path, 7).text()
    assert 'gridmill_log_lines_lost_total{kind="rows",reason="replica_killed"} 2' in text
    assert 'gridmill_log_lines_total{kind="rows"} 6' in text


def test_the_rows_of_requests_are_lost_one_by_one_when_too_many_wait(tmp_path: Path) -> None:
    log = RequestLogWriter(RequestLog(folder=str(tmp_path / "log"), rows=True), "rain", 0, tmp_path)
    body, answered = {"rows": [{"x": 1}] * 4}, answer(1.0, 2.0, 3.0, 4.0)
    number = MOST_WAITING + 3
    for _ in range(number):
        log.add(request(body), Answer(status=200, body=answered), answered, 0.1)
    log.flush(ends=True)
    report = read_counts(tmp_path, RequestLog(folder=""))
    assert report is not None
    lines, logged = report.counts["requests"], report.counts["rows"]
    assert (lines.logged, lines.written, dict(lines.lost)) == (number, MOST_WAITING, {"queue_full": 3})
    assert (logged.logged, logged.written) == (4 * number, MOST_WAITING)
    assert dict(logged.lost) == {"queue_full": 4 * number - MOST_WAITING}


def test_rows_that_cannot_be_read_are_counted_and_no_request_fails(tmp_path: Path) -> None:
    log = RowLogWriter(RequestLog(folder=str(tmp_path), rows=True), "rain", 0, counts_folder=tmp_path)
    log.add(request([{"x": 1}, 7]), answer(1.0, 2.0))
    log.add(request([{"x": 1}]), b"no answer")
    log.flush(ends=True)
    report = read_counts(tmp_path, RequestLog(folder=""))
    assert report is not None
    assert len(rows(tmp_path)) == 1
    assert (report.counts["rows"].logged, dict(report.counts["rows"].lost)) == (3, {"unreadable": 2})


def test_a_killed_replica_leaves_no_part_of_a_line_in_the_file_of_its_successor(tmp_path: Path) -> None:
    settings = RequestLog(folder=str(tmp_path / "log"))
    (tmp_path / "log").mkdir()
    path = tmp_path / "log/requests-0.jsonl"
    path.write_text('{"of": "an earlier attempt"}\n{"par')
    for _ in range(2):
        log = RequestLogWriter(settings, "rain", 0, tmp_path)
        log.add(request({}), Answer(status=200, body=b""), b"", 0.1)
        log.flush()
        log.add(request({}), Answer(status=200, body=b""), b"", 0.1)  # killed before it is written
        with path.open("a") as file:
            file.write('{"par')
    complete_left_files(settings, (), tmp_path)
    RequestLogUpkeep(tmp_path).complete(settings, ())
    assert len([json.loads(line) for line in path.read_text().splitlines()]) == 3
    report = read_counts(tmp_path, settings)
    assert report is not None
    counts = report.counts["requests"]
    assert (counts.logged, counts.written, dict(counts.lost)) == (4, 2, {"replica_killed": 2})


def test_a_replica_that_is_killed_while_it_completes_a_file_loses_no_line_of_the_next_one(
    tmp_path: Path,
) -> None:
    settings = RequestLog(folder=str(tmp_path / "log"))
    path = tmp_path / "log/requests-0.jsonl"
    for number in (5, 3):
        log = RequestLogWriter(settings, "rain", 0, tmp_path)
        for _ in range(number):
            log.add(request({}), Answer(status=200, body=b""), b"", 0.1)
        log.flush()
        if number == 5:  # killed before it counts that the file has its final name
            path.rename(tmp_path / "log/requests-0-1.jsonl")
    complete_left_files(settings, (), tmp_path)
    report = read_counts(tmp_path, settings)
    assert report is not None
    counts = report.counts["requests"]
    assert (counts.logged, counts.written, dict(counts.lost)) == (8, 8, {})


def test_a_folder_that_cannot_be_written_costs_no_request_and_is_counted(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    log = writer(tmp_path / "file" / "below")
    log.add(request([{"x": 1}]), answer(1.0))
    log.flush()
    assert log.lost == 1


def test_a_row_that_is_written_in_part_to_a_full_disk_does_not_damage_the_next_row(tmp_path: Path) -> None:
    log = writer(tmp_path)
    log.add(request([{"x": 1}]), answer(1.0))
    log.flush()
    size = (tmp_path / "rows-0.part").stat().st_size
    log.add(request([{"x": 2}]), answer(2.0))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, limits[1]))
    try:
        log.flush()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    log.add(request([{"x": 3}]), answer(3.0))
    log.flush(ends=True)
    assert [one["x"] for one in rows(tmp_path)] == [1, 3]
    assert log.lost == 1


def test_an_application_logs_the_rows_of_predictions_and_not_of_refused_requests(tmp_path: Path) -> None:
    settings = RequestLog(folder=str(tmp_path / "log"), rows=True)
    order = order_of(linear_model(tmp_path / "m"), request_log=settings)
    log = RequestLogWriter(settings, "weather", 0)

    async def scenario(call: Any, hosted: Any) -> None:
        del hosted
        packed = {"accept-encoding": "gzip", "x-request-id": "mine"}
        many = {"rows": [row(temp=float(number)) for number in range(100)]}
        assert (await call("/predict", many, headers=packed)).headers["content-encoding"] == "gzip"
        assert (await call("/predict", {"rows": [{"temp": 1}]})).status == 422

    run(scenario, order, tmp_path, log=log)
    log.flush(ends=True)
    logged = rows(tmp_path / "log")
    assert [one["temp"] for one in logged] == [float(number) for number in range(100)]
    assert [one["prediction"] for one in logged[:2]] == [120.0, 121.0]
    assert {one["request_id"] for one in logged} == {"mine"}
