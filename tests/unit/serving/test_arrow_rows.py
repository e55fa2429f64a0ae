"""Rows in Arrow streams get the predictions and the errors of the same rows in JSON. No stream is an error of
the server or takes much memory."""

import asyncio
import json
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from tests.kit.served_models import Reply, application, asgi_client, linear_model, order_of, sum_model

from gridmill.domain.serving import RequestLog
from gridmill.jobs.features import Encoding
from gridmill.jobs.model_files import load_card, save_model
from gridmill.serving.arrow_rows import objects_of_answer, read_rows
from gridmill.serving.errors import FieldsError
from gridmill.serving.request_log import RequestLogWriter

ARROW = "application/vnd.apache.arrow.stream"
ENCODINGS = (
    Encoding(column="temp", type="double"),
    Encoding(column="rain", type="bool"),
    Encoding(column="city", type="string", categories=("Ulm", "Köln"), others=True),
)
MOST_BYTES = 2 << 20


class Server:
    """The application of a replica in an event loop of its own."""

    def __init__(self, runner: asyncio.Runner, folder: Path, model: Path, **parts: Any) -> None:
        self.runner = runner

        async def make() -> None:
            order = order_of(model, max_body_bytes=MOST_BYTES)
            app, self.hosted = application(order, folder, **parts)
            self.call = asgi_client(app)

        runner.run(make())

    def predict(self, body: object, **headers: str) -> Reply:
        given = {name.replace("_", "-"): value for name, value in headers.items()}

        async def call() -> Reply:
            return await self.call("/predict", body, headers=given)

        return self.runner.run(call())

    def arrow(self, body: bytes, **headers: str) -> Reply:
        return self.predict(body, content_type=ARROW, **headers)

    def close(self) -> None:
        for one in self.hosted:
            one.batcher.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("arrow")
    with asyncio.Runner() as runner:
        made = Server(runner, folder, sum_model(folder / "m", ENCODINGS))
        yield made
        made.close()


def stream(table: pa.Table, batch_rows: int | None = None, compression: str | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table, batch_rows)
    return sink.getvalue().to_pybytes()


FLOATS = st.floats(allow_nan=False, allow_infinity=False, width=32)
KINDS: dict[str, tuple[st.SearchStrategy[Any], tuple[pa.DataType, ...]]] = {
    "float": (FLOATS, (pa.float64(), pa.float32(), pa.dictionary(pa.int8(), pa.float64()))),
    "integer": (st.integers(-99, 99), (pa.int8(), pa.int64(), pa.decimal128(22, 3), pa.float16())),
    "boolean": (st.booleans(), (pa.bool_(),)),
    "text": (
        st.sampled_from(["Ulm", "Köln", "", "x", "a long text of many letters"]),
        (pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int16(), pa.string())),
    ),
    "null": (st.none(), (pa.null(), pa.float64(), pa.string(), pa.bool_(), pa.binary(), pa.date32())),
}
FITTING = {
    "temp": ["float", "integer", "null"],
    "rain": ["boolean", "integer", "null"],
    "city": ["text", "null"],
}


def array_of(values: list[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(kind):
        return pa.array(values, kind.value_type).dictionary_encode()
    return pa.array(values).cast(kind)


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    """Columns of any types; each of them is right with some probability."""
    rows = draw(st.integers(0, 12))
    columns: dict[str, pa.Array] = {}
    for name in ("temp", "rain", "city", "further"):
        kinds = FITTING.get(name, [*KINDS]) if draw(st.integers(0, 3)) else [*KINDS, "missing"]
        kind = draw(st.sampled_from(kinds))
        if kind == "missing":
            continue
        values, types = KINDS[kind]
        given = draw(st.lists(st.none() | values, min_size=rows, max_size=rows))
        columns[name] = array_of(given, draw(st.sampled_from(types)))
    return pa.table(columns) if columns else pa.table({"further": pa.nulls(rows)})


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    table=tables(),
    batch_rows=st.sampled_from([None, 1, 5]),
    compression=st.sampled_from([None, "lz4", "zstd"]),
)
def test_a_stream_is_answered_as_the_same_rows_in_json(
    server: Server, table: pa.Table, batch_rows: int | None, compression: str | None
) -> None:
    rows = [
        {name: float(one) if hasattr(one, "as_tuple") else one for name, one in row.items()}
        for row in table.to_pylist()
    ]
    in_json = server.predict({"rows": rows})
    in_arrow = server.arrow(stream(table, batch_rows, compression))
    assert in_arrow.status == in_json.status, in_arrow.body
    wanted, found = in_json.json(), in_arrow.json()
    for answer in (wanted, found):
        answer.pop("request_id", None)
    assert found == wanted
    if in_json.status == 200:
        reply = server.arrow(stream(table, batch_rows, compression), accept=ARROW)
        assert reply.headers["content-type"] == ARROW
        answer = pa.ipc.open_stream(reply.body).read_all()
        values = [
            None if value is None or np.isnan(value) else value for value in answer["prediction"].to_pylist()
        ]
        assert values == [one["prediction"] for one in wanted["predictions"]]
        assert answer.schema.metadata == {b"model": b"weather", b"version": b"weather/linear@1"}


def good_table(rows: int = 4) -> pa.Table:
    return pa.table(
        {
            "temp": np.arange(rows, dtype=np.float64),
            "rain": pa.array([True, None] * (rows // 2)),
            "city": pa.array(["Ulm", "x"] * (rows // 2)).dictionary_encode(),
            "note": pa.array(["some text", None] * (rows // 2), pa.string_view()),
        }
    )


STREAMS = [stream(good_table(), rows, kind) for rows in (None, 2) for kind in (None, "lz4", "zstd")]


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A stream that is cut, extended, or changed at a few places."""
    content = bytearray(draw(st.sampled_from(STREAMS)))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(content) - 1))
        way = draw(st.sampled_from(["byte", "number", "long", "cut", "more"]))
        if way == "byte":
            content[at] = draw(st.integers(0, 255))
        elif way in ("number", "long"):
            form = "<i" if way == "number" else "<q"
            size = struct.calcsize(form)
            at = min(at - at % 4, len(content) - size) if len(content) > size else 0
            most = 2 ** (8 * size - 1)
            value = draw(st.sampled_from([-1, 0, 1, 2**30, most - 1, -most]))
            content[at : at + size] = struct.pack(form, value)
        elif way == "cut":
            del content[max(1, at) :]
        else:
            content[at:at] = draw(st.binary(min_size=1, max_size=9))
    return bytes(content)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(body=damaged() | st.binary(max_size=200))
def test_no_damaged_stream_is_an_error_of_the_server_or_takes_much_memory(
    server: Server, body: bytes
) -> None:
    before = pa.total_allocated_bytes()
    reply = server.arrow(body)
    assert reply.status in (200, 400, 413, 422), reply.body
    assert pa.total_allocated_bytes() - before < 8 * MOST_BYTES
    if reply.status != 200:
        assert reply.json()["error"]


def view_bomb() -> pa.Table:
    """Many texts that are views of the same bytes."""
    rows, text = 10_000, b"x" * 100_000
    view = struct.pack("<i4sii", len(text), text[:4], 0, 0)
    buffers = [None, pa.py_buffer(view * rows), pa.py_buffer(text)]
    return pa.table({"city": pa.Array.from_buffers(pa.string_view(), rows, buffers)})


BOMBS = {
    "a text that a dictionary repeats": (
        pa.table({"city": pa.DictionaryArray.from_arrays(np.zeros(10_000, np.int8), ["x" * 100_000])}),
        None,
    ),
    "a text that views repeat": (view_bomb(), None),
    "zeros that are compressed": (pa.table({"temp": np.zeros(10_000_000)}), "zstd"),
    "zeros of an unknown column": (pa.table({"other": np.zeros(10_000_000)}), "lz4"),
    "nulls without bytes": (pa.table({"temp": pa.nulls(2_000_000)}), None),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_small_stream_with_many_values_is_too_large(server: Server, name: str) -> None:
    table, compression = BOMBS[name]
    body = stream(table, compression=compression)
    assert len(body) < MOST_BYTES
    reply = server.arrow(body)
    assert (reply.status, reply.json()["code"]) == (413, "too-large"), reply.body


def test_a_stream_that_declares_rows_without_bytes_is_too_large(server: Server) -> None:
    for name in ("temp", "other"):
        body = stream(pa.table({name: pa.nulls(12_345)}))
        changed = body.replace(struct.pack("<q", 12_345), struct.pack("<q", 2**40))
        assert changed != body
        assert server.arrow(changed).status == 413


def test_lengths_of_nulls_give_no_room_for_other_values(server: Server) -> None:
    views = struct.pack("<iiii", -(2**31), 0, 0, 0) * 4
    buffers = [pa.py_buffer(b"\0"), pa.py_buffer(views)]
    nulls = pa.Array.from_buffers(pa.string_view(), 4, buffers, null_count=4)
    text = pa.DictionaryArray.from_arrays(pa.array([0] * 4, pa.int8()), pa.array(["x" * (MOST_BYTES // 3)]))
    body = stream(good_table().set_column(0, "temp", nulls).set_column(2, "city", text))
    assert len(body) < MOST_BYTES
    assert server.arrow(body).status == 413


def test_texts_that_are_views_can_be_in_a_dictionary(server: Server) -> None:
    known = pa.array(["Ulm", "Köln", None, "a text that has more than 12 bytes"], pa.string_view())
    city = pa.DictionaryArray.from_arrays(pa.array([3, 1, 2, 0], pa.int8()), known)
    reply = server.arrow(stream(good_table().set_column(2, "city", city)))
    plain = server.arrow(
        stream(
            good_table().set_column(
                2, "city", pa.array(["a text that has more than 12 bytes", "Köln", None, "Ulm"])
            )
        )
    )
    assert reply.status == plain.status == 200
    assert reply.json() == plain.json()


BROKEN = {
    "empty": (b"", "the body is empty, not an Arrow stream"),
    "json": (b'{"rows": []}', "the body is not a valid Arrow stream"),
    "cut in a message": (STREAMS[0][:-30], "Arrow stream"),
    "cut between messages": (STREAMS[0][:-8], "the Arrow stream is not complete: it has no end"),
    "continued": (STREAMS[0] * 2, "further bytes follow the end of the Arrow stream"),
    "a list": (stream(pa.table({"temp": [[1.0]]})), "the column 'temp' of the Arrow stream is nested"),
    "a struct": (
        stream(pa.table({"further": [{"a": 1}]})),
        "the column 'further' of the Arrow stream is nested",
    ),
    "runs": (
        stream(pa.table({"temp": pa.RunEndEncodedArray.from_arrays([2**31 - 1], [1.0])})),
        "the column 'temp' of the Arrow stream is nested",
    ),
    "many batches": (stream(good_table(400), 2), "the Arrow stream has more than 128 record batches"),
    "many columns": (
        stream(pa.table([pa.array([1])] * 10_001, [str(number) for number in range(10_001)])),
        "the Arrow stream has more than 10000 columns",
    ),
    "much metadata": (
        stream(pa.table({"a": [1]}).replace_schema_metadata({"a": "b" * 1_048_000, "c": "d" * 600})),
        "the Arrow stream has more than 1048576 bytes of names and metadata",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_stream_is_explained(server: Server, name: str) -> None:
    body, words = BROKEN[name]
    reply = server.arrow(body)
    assert (reply.status, reply.json()["code"]) == (400, "malformed"), reply.body
    assert words in reply.json()["error"]


def test_two_columns_of_one_name_are_refused(server: Server) -> None:
    reply = server.arrow(stream(pa.table([[1.0], [2.0]], ["temp", "temp"])))
    assert reply.status == 422
    assert reply.json()["problems"] == [
        {"row": None, "field": "temp", "problem": "the stream has several columns of this name"}
    ]


def test_a_binary_column_is_explained(server: Server) -> None:
    table = good_table().set_column(2, "city", pa.array([b"a", None, b"b", b"c"]))
    problems = server.arrow(stream(table)).json()["problems"]
    assert [one["row"] for one in problems] == [0, 2, 3]
    assert problems[0]["problem"] == "the value is binary data, not a text or a number"


UNREADABLE_TIMES = {
    "year above 9999": pa.array([2**62, None], pa.timestamp("us")),
    "unknown time zone": pa.array([0, None], pa.timestamp("us", "Nowhere/City")),
    "day": pa.array([2**31 - 1, None], pa.int32()).cast(pa.date32()),
    "duration": pa.array([2**62, None], pa.duration("s")),
    "category": pa.DictionaryArray.from_arrays([0, None], pa.array([2**62], pa.timestamp("us"))),
}


@pytest.mark.parametrize("name", UNREADABLE_TIMES)
def test_a_time_that_json_cannot_have_is_explained(server: Server, name: str) -> None:
    body = stream(good_table().slice(0, 2).set_column(0, "temp", UNREADABLE_TIMES[name]))
    reply = server.arrow(body)
    assert (reply.status, reply.json()["code"]) == (422, "wrong-fields"), reply.body
    assert reply.json()["problems"][0]["field"] == "temp"
    assert "is out of range, or its time zone is unknown" in reply.json()["error"]
    with pytest.raises(FieldsError, match="field 'temp': a value of the type"):
        read_rows(body, {"temp"}, MOST_BYTES).objects()


def test_nan_and_infinity_are_missing(server: Server) -> None:
    table = good_table().set_column(0, "temp", pa.array([1.0, float("nan"), float("inf"), None]))
    assert server.arrow(stream(table)).json()["not_finite"] == [1, 2, 3]


def test_a_model_that_reads_sequences_names_the_way_out(tmp_path: Path) -> None:
    with asyncio.Runner() as runner:
        server = Server(runner, tmp_path, linear_model(tmp_path / "m", sequence=2))
        reply = server.arrow(stream(good_table()))
        server.close()
    assert reply.status == 422
    assert "sequences" in reply.json()["error"]
    assert reply.json()["hint"] == "Send the rows in JSON."


def test_classes_are_columns_of_the_answer(tmp_path: Path) -> None:
    with asyncio.Runner() as runner:
        server = Server(runner, tmp_path, linear_model(tmp_path / "m", classes=("no", "yes")))
        table = pa.table({"temp": [1.0, 0.0], "wind speed": [0, 0], "city": ["x", "x"]})
        answer = pa.ipc.open_stream(server.arrow(stream(table), accept=ARROW).body).read_all()
        server.close()
    assert answer.to_pydict() == {
        "prediction": ["yes", "no"],
        "probability_no": [0.0, 1.0],
        "probability_yes": [1.0, 0.0],
    }


def test_several_labels_are_lists_in_the_answer(tmp_path: Path) -> None:
    folder = linear_model(tmp_path / "one")
    weights = helper.make_tensor("weights", TensorProto.DOUBLE, [4, 2], [1, 2, 10, 20, 100, 200, 0, 0])
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["inputs", "weights"], ["output"])],
        "two",
        [helper.make_tensor_value_info("inputs", TensorProto.DOUBLE, [None, 4])],
        [helper.make_tensor_value_info("output", TensorProto.DOUBLE, [None, 2])],
        [weights],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    card = replace(load_card(folder), labels=("ahead", "further"))
    (tmp_path / "two").mkdir()
    save_model(tmp_path / "two", card, model.SerializeToString())
    with asyncio.Runner() as runner:
        server = Server(runner, tmp_path, tmp_path / "two")
        body = stream(pa.table({"temp": [1.0, None], "wind speed": [1, 0], "city": ["Ulm", "x"]}))
        answer, in_json = server.arrow(body, accept=ARROW), server.arrow(body).json()
        empty = server.arrow(stream(pa.table({"temp": [1.0], "wind speed": [1], "city": ["x"]}).slice(1)))
        server.close()
    table = pa.ipc.open_stream(answer.body).read_all()
    assert table["prediction"].type == pa.list_(pa.float64())
    assert table["prediction"][0].as_py() == [111.0, 222.0]
    assert objects_of_answer(answer.body) == in_json["predictions"]
    assert empty.json()["predictions"] == []


def test_logged_rows_and_bodies_are_those_of_json(tmp_path: Path) -> None:
    settings = RequestLog(folder=str(tmp_path / "log"), rows=True, bodies=True)
    log = RequestLogWriter(settings, "weather", 0)
    with asyncio.Runner() as runner:
        server = Server(runner, tmp_path, sum_model(tmp_path / "m", ENCODINGS), log=log)
        body = stream(good_table().slice(0, 1))
        server.arrow(body, accept=ARROW)
        server.arrow(body)
        server.close()
    log.flush(ends=True)
    (rows,) = (tmp_path / "log").glob("rows-0-*.jsonl")
    logged = [json.loads(line) for line in rows.read_text().splitlines()]
    assert [{name: one[name] for name in ("temp", "rain", "city", "prediction")} for one in logged] == [
        {"temp": 0.0, "rain": True, "city": "Ulm", "prediction": 2.0}
    ] * 2
    (line, _) = (tmp_path / "log/requests-0.jsonl").read_text().splitlines()
    assert json.loads(json.loads(line)["request"])["rows"] == [{"temp": 0.0, "rain": True, "city": "Ulm"}]
    assert json.loads(json.loads(line)["answer"])["predictions"] == [{"prediction": 2.0}]
