"""Copies of requests never wait for the shadow, and answers are compared by the tolerance of golden rows."""

import json
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.kit.served_models import linear_model, order_of, row, run

from gridmill.serving.request import Answer, Request
from gridmill.serving.shadow_comparison import Comparison, compare, rows_of_answer
from gridmill.serving.shadow_copies import (
    INLINE_BYTES,
    MOST_LARGE,
    Copy,
    CopyWriter,
    WaitingBytes,
    copies_pair,
    discard,
    forget_replica,
    receive,
)
from gridmill.serving.tensors import to_binary

MIB = 1 << 20
INFER = "/v2/models/weather/infer"


def answer(*rows: object) -> bytes:
    return json.dumps({"model": "m", "version": "w/m@1", "predictions": rows}).encode()


def rows_of(body: bytes) -> Sequence[Mapping[str, Any]]:
    return rows_of_answer(body, b"", is_inference=False)


def request(body: bytes = b"{}", version: str = "w/m@1", path: str = "/predict") -> Request:
    return Request(method="POST", path=path, query={}, headers={}, body=body, request_id="1", version=version)


class Copies:
    """A writer, and the end of the socket that the shadow reads from."""

    def __init__(self, folder: Path, *, percent: float = 100, most: int = 64 * MIB, **parts: Any) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        writing, self.reading = copies_pair()
        self.descriptor = os.dup(writing.fileno())
        self.most = most
        self.writer = CopyWriter(
            writing.detach(), "weather", "w/m@1", percent, WaitingBytes(folder, 0, most), **parts
        )
        self._writers = [self.writer]

    def further(self, number: int) -> CopyWriter:
        """The writer of another replica."""
        waiting = WaitingBytes(self.folder, number, self.most)
        self._writers.append(CopyWriter(os.dup(self.descriptor), "weather", "w/m@1", 100, waiting))
        return self._writers[-1]

    def send(self, body: bytes = b"{}", answered: bytes = b"answer", **parts: str) -> None:
        self.writer.send(request(body, **parts), Answer(body=b"packed"), answered, 0.5)

    def next(self) -> Copy:
        copy = receive(self.reading)
        assert copy is not None
        return copy

    def close(self) -> None:
        self.reading.close()
        os.close(self.descriptor)
        for one in self._writers:
            one.close()


@pytest.fixture
def copies(tmp_path: Path) -> Iterator[Copies]:
    made = Copies(tmp_path / "s")
    yield made
    made.close()


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
        ({"prediction": [1, 2]}, {"prediction": [1, 2, 3]}, Comparison(different=1, differences=(0,))),
        ({"prediction": [1]}, {"prediction": []}, Comparison(different=1)),
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
    assert compare(rows_of(answer(served)), rows_of(answer(shadow)), 0.1) == expected


def test_answers_of_different_formats_are_compared_and_missing_rows_are_an_error():
    lines = b'{"prediction": 1.0}\n{"prediction": 2.0}\n'
    sink = pa.BufferOutputStream()
    table = pa.table({"prediction": [1.0, float("nan")]})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    two = rows_of(answer({"prediction": 1}, {"prediction": 2}))
    assert compare(rows_of(lines), two, 0) == Comparison(equal=2)
    arrow = sink.getvalue().to_pybytes()
    missing = rows_of(answer({"prediction": 1}, {"prediction": None}))
    assert compare(rows_of(arrow), missing, 0) == Comparison(equal=2)
    with pytest.raises(ValueError, match="zip"):
        compare(rows_of(lines), rows_of(answer({"prediction": 1})), 0)


def test_only_answers_of_the_version_to_requests_without_a_version_are_copied(tmp_path):
    copies = Copies(tmp_path / "s", percent=50, chance=iter((0.4, 0.6, 0.1)).__next__)
    copies.send(version="w/m@2")
    copies.send(answered=b"sampled")
    copies.send(answered=b"not in the sample")
    copies.send(path="/v2/models/weather/versions/1/infer")
    copies.send(path=INFER, answered=b"tensors")
    named = request()
    named.query = {"version": "1"}
    copies.writer.send(named, Answer(body=b""), b"named", 0.1)
    assert (copy := copies.next()).answer == b"sampled"
    assert (copy.path, copy.seconds) == ("/predict", 0.5)
    assert (copies.next().path, copies.writer.dropped) == (INFER, 0)
    with pytest.raises(BlockingIOError):
        receive(copies.reading)
    copies.close()


def test_small_copies_are_dropped_and_counted_when_nobody_reads(copies):
    for _ in range(1000):
        copies.send(b"x" * 20_000)
    assert copies.writer.dropped > 800
    copies.reading.close()
    before = copies.writer.dropped
    copies.send()
    assert copies.writer.dropped == before + 1


@pytest.mark.parametrize("size", [INLINE_BYTES - 5, INLINE_BYTES, 200_000, 16 * MIB])
def test_a_copy_has_each_size_that_a_request_can_have(copies, size):
    body = os.urandom(size)
    before = len(os.listdir("/proc/self/fd"))
    for number in range(20):
        copies.send(body, b"answer %d" % number)
        copy = copies.next()
        assert (copy.body, copy.answer) == (body, b"answer %d" % number)
    assert copies.writer.dropped == 0
    assert len(os.listdir("/proc/self/fd")) <= before + 1  # the pipe of the last copy


def test_the_large_copies_of_all_replicas_have_one_budget(copies):
    other = copies.further(1)
    for _ in range(3):
        copies.send(bytes(16 * MIB))
    assert copies.writer.dropped == 0
    body, got = bytes(10 * MIB), Answer(body=b"")
    other.send(request(body), got, b"1", 0.0)
    other.send(request(body), got, b"2", 0.0)
    assert other.dropped == 1
    copies.next()
    copies.writer.release()
    other.send(request(body), got, b"3", 0.0)
    assert (copies.writer.dropped, other.dropped) == (0, 1)
    copies.send(bytes(65 * MIB))
    assert copies.writer.dropped == 1
    # copies that are discarded have their room again
    assert discard(copies.reading) == 4
    copies.writer.release()
    for _ in range(4):
        other.send(request(body), got, b"4", 0.0)
    assert (discard(copies.reading), other.dropped) == (4, 1)
    forget_replica(copies.folder, 1)
    for _ in range(MOST_LARGE + 10):
        copies.send(bytes(2 * INLINE_BYTES))
    assert copies.writer.dropped >= 11


def test_the_bytes_that_wait_are_those_that_were_not_read(copies):
    chance, writers = random.Random(3), [copies.writer, *map(copies.further, (1, 2, 3))]
    waiting: list[int] = []
    for _ in range(400):
        if waiting and chance.random() < 0.45:
            copy = copies.next()
            assert len(copy.body) == waiting.pop(0)
            continue
        for one in writers:
            one.release()
        writer, size = chance.choice(writers), chance.randrange(INLINE_BYTES, 12 * MIB)
        before = writer.dropped
        writer.send(request(bytes(size)), Answer(body=b""), b"", 0.0)
        if writer.dropped == before:
            waiting.append(size)
        assert sum(waiting) <= 64 * MIB
        assert writer.dropped == before or sum(waiting) + size > 64 * MIB
    assert sum(one.dropped for one in writers) > 10


def test_a_replica_copies_each_kind_of_answer_and_answers_as_without_a_shadow(tmp_path: Path):
    model = linear_model(tmp_path / "m")
    tensors = [
        {"name": "temp", "shape": [2], "datatype": "FP64", "data": [1.0, 2.0]},
        {"name": "wind speed", "shape": [2], "datatype": "FP64", "data": [3.0, 4.0]},
        {"name": "city", "shape": [2], "datatype": "BYTES", "data": ["Paris", "Oslo"]},
    ]
    inference = {"inputs": tensors}
    binary = {**inference, "parameters": {"binary_data_output": True}}
    bodies = [
        ("/predict", json.dumps({"rows": [row()]}).encode(), "application/json", 200),
        ("/predict", json.dumps(row()).encode(), "application/x-ndjson", 200),
        ("/predict", b"{", "application/json", 400),
        (INFER, json.dumps(inference).encode(), "application/json", 200),
        (INFER, json.dumps(binary).encode(), "application/json", 200),
    ]
    writing, reading = copies_pair()
    waiting = WaitingBytes(tmp_path, 0)
    copies = CopyWriter(writing.detach(), "weather", "weather/linear@1", 100, waiting)
    answers: list[list[bytes]] = []

    async def scenario(call, hosted):
        answers.append([])
        for path, body, kind, status in bodies:
            reply = await call(path, body, headers={"content-type": kind, "x-request-id": "1"})
            assert reply.status == status, reply.body
            answers[-1].append(reply.body)

    run(scenario, order_of(model), tmp_path)
    run(scenario, order_of(model), tmp_path, copies=copies)
    assert answers[0] == answers[1]
    rows = []
    for path, body, kind, _ in (one for one in bodies if one[3] == 200):
        copy = receive(reading)
        assert copy is not None
        assert (copy.path, copy.content_type, copy.body) == (path, kind.encode(), body)
        assert copy.answer in answers[1]
        assert copy.seconds > 0
        rows.append(rows_of_answer(copy.answer, copy.answer_length, is_inference=path == INFER))
    assert rows[2] == rows[3]
    assert len(rows[2]) == 2
    reading.close()
    copies.close()


def test_answers_with_tensors_are_compared_like_those_with_rows():
    numbers = np.array([1.0, np.nan, 3.0])
    outputs = [
        {"name": "prediction", "shape": [3], "datatype": "FP64", "data": [1.0, None, 3.0]},
        {"name": "pair", "shape": [3, 2], "datatype": "FP64", "data": [1, 2, 3, 4, 5, 6]},
        {"name": "class", "shape": [3], "datatype": "BYTES", "data": ["a", "b", "c"]},
    ]
    plain = rows_of_answer(json.dumps({"outputs": outputs}).encode(), b"", is_inference=True)
    assert plain[1] == {"prediction": None, "pair": [3, 4], "class": "b"}
    blobs = [
        to_binary(numbers, "FP64"),
        to_binary(np.arange(1.0, 7.0), "FP64"),
        to_binary(("a", "b", "c"), "BYTES"),
    ]
    heads = [
        {
            **{name: one[name] for name in ("name", "shape", "datatype")},
            "parameters": {"binary_data_size": len(blob)},
        }
        for one, blob in zip(outputs, blobs, strict=True)
    ]
    head = json.dumps({"outputs": heads}).encode()
    binary = rows_of_answer(head + b"".join(blobs), b"%d" % len(head), is_inference=True)
    assert compare(plain, binary, 0.0) == Comparison(equal=3)
    assert compare(plain, [{**one, "pair": [9, 9]} for one in binary], 0.0).different == 3
