"""Copies of requests never wait for the shadow, and answers are compared by the tolerance of golden rows."""

import json
import os
from pathlib import Path

import pyarrow as pa
import pytest
from tests.kit.served_models import linear_model, order_of, row, run

from gridmill.serving.request import Request
from gridmill.serving.shadow_copies import (
    BUFFER_BYTES,
    Comparison,
    CopyWriter,
    compare,
    copies_pair,
    read_copy,
)


def answer(*rows: object) -> bytes:
    return json.dumps({"model": "m", "version": "w/m@1", "predictions": rows}).encode()


def request(body: bytes = b"{}", version: str = "w/m@1", **query: str) -> Request:
    return Request(
        method="POST", path="/predict", query=query, headers={}, body=body, request_id="1", version=version
    )


@pytest.mark.parametrize(
    ("served", "shadow", "expected"),
    [
        ({"prediction": 1.0}, {"prediction": 1.09}, Comparison(equal=1)),
        ({"prediction": 1.0}, {"prediction": 1.5}, Comparison(different=1, differences=(0.5,))),
        ({"prediction": None}, {"prediction": None}, Comparison(equal=1)),
        ({"prediction": None}, {"prediction": 1.0}, Comparison(different=1)),
        ({"prediction": None}, {"error": "x"}, Comparison(different=1)),
        ({"error": "x"}, {"error": "y"}, Comparison()),
        (
            {"prediction": 2, "prediction_p90": 3},
            {"prediction": 2},
            Comparison(different=1, differences=(0,)),
        ),
        ({"prediction": [1, 2]}, {"prediction": [1, 4]}, Comparison(different=1, differences=(2,))),
        (
            {"prediction": "no", "probability_no": 0.6},
            {"prediction": "yes", "probability_no": 0.35},
            Comparison(different=1, differences=(0.25,)),
        ),
        (
            {"prediction": "no", "probability_no": 0.6},
            {"prediction": "no", "probability_no": 0.6005},
            Comparison(equal=1),
        ),
        ({"prediction": 1, "features": {}}, {"prediction": 1}, Comparison(equal=1)),
    ],
)
def test_rows_are_equal_within_the_tolerance(served, shadow, expected):
    assert compare(answer(served), answer(shadow), 0.1) == expected


def test_answers_of_different_formats_are_compared_and_missing_rows_are_an_error():
    lines = b'{"prediction": 1.0}\n{"prediction": 2.0}\n'
    sink = pa.BufferOutputStream()
    table = pa.table({"prediction": [1.0, float("nan")]})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    assert compare(lines, answer({"prediction": 1}, {"prediction": 2}), 0) == Comparison(equal=2)
    arrow = sink.getvalue().to_pybytes()
    assert compare(arrow, answer({"prediction": 1}, {"prediction": None}), 0) == Comparison(equal=2)
    with pytest.raises(ValueError, match="zip"):
        compare(lines, answer({"prediction": 1}), 0)


def test_only_answers_of_the_version_to_requests_without_a_version_are_copied():
    writing, reading = copies_pair()
    copies = CopyWriter(writing.detach(), "w/m@1", 50, chance=iter((0.4, 0.6)).__next__)
    copies.send(request(version="w/m@2"), b"canary")
    copies.send(request(version="w/m@1", **{}), b"sampled")
    copies.send(request(), b"not in the sample")
    named = request()
    named.query = {"version": "1"}
    copies.send(named, b"named")
    assert read_copy(reading.recv(1 << 20)).answer == b"sampled"
    with pytest.raises(BlockingIOError):
        reading.recv(1)
    assert copies.dropped == 0
    reading.close()


def test_copies_are_dropped_and_counted_when_nobody_reads_or_the_copy_is_too_large():
    writing, reading = copies_pair()
    copies = CopyWriter(writing.detach(), "w/m@1", 100)
    copies.send(request(os.urandom(8 * BUFFER_BYTES)), b"")
    assert copies.dropped == 1
    for _ in range(1000):
        copies.send(request(b"x" * 50_000), b"answer")
    assert copies.dropped > 900
    reading.close()
    before = copies.dropped
    copies.send(request(), b"after the end of the shadow")
    assert copies.dropped == before + 1


def test_a_replica_copies_each_kind_of_answer_and_answers_as_without_a_shadow(tmp_path: Path):
    model = linear_model(tmp_path / "m")
    bodies = [
        (json.dumps({"rows": [row()]}).encode(), "application/json", 200),
        (json.dumps(row()).encode(), "application/x-ndjson", 200),
        (b"{", "application/json", 400),
    ]
    writing, reading = copies_pair()
    copies = CopyWriter(writing.detach(), "weather/linear@1", 100)
    answers: list[list[bytes]] = []

    async def scenario(call, hosted):
        answers.append([])
        for body, kind, status in bodies:
            reply = await call("/predict", body, headers={"content-type": kind, "x-request-id": "1"})
            assert reply.status == status
            answers[-1].append(reply.body)

    run(scenario, order_of(model), tmp_path)
    run(scenario, order_of(model), tmp_path, copies=copies)
    assert answers[0] == answers[1]
    for body, kind, _ in bodies[:2]:
        copy = read_copy(reading.recv(1 << 20))
        assert (copy.content_type, copy.body) == (kind.encode(), body)
        assert copy.answer in answers[1]
    reading.close()
