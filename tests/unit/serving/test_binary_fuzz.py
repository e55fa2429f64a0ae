"""Random and damaged requests with binary tensors of the Open Inference Protocol get an answer or an error of
the client, and never an error of the server."""

import asyncio
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from tests.kit.served_models import Reply, application, asgi_client, linear_model, order_of

KINDS = {
    **{f"INT{bits}": f"<i{bits // 8}" for bits in (8, 16, 32, 64)},
    **{f"UINT{bits}": f"<u{bits // 8}" for bits in (8, 16, 32, 64)},
    **{f"FP{bits}": f"<f{bits // 8}" for bits in (16, 32, 64)},
    "BOOL": "?",
}
NAMES = ("temp", "wind speed", "city")
DAMAGE = ("bytes", "size", "shape", "datatype", "both", "twice", "length", "header")
ODD = st.sampled_from([None, True, "8", -1, 2**31, 2**63, 1e308, [], {}])
ODD_SHAPES = st.sampled_from([[], [0], [-1], [2, 2], [2**40, 2**40], [1.5], "2", None, [None], [True]])


@st.composite
def blobs(draw: st.DrawFn, rows: int, name: str) -> tuple[str, bytes]:
    """A datatype and the bytes of a tensor with that many rows."""
    if name == "city":
        texts = draw(st.lists(st.text(max_size=5), min_size=rows, max_size=rows))
        encoded = [one.encode("utf-8", "replace") for one in texts]
        return "BYTES", b"".join(struct.pack("<I", len(one)) + one for one in encoded)
    datatype = draw(st.sampled_from(sorted(KINDS)))
    values = draw(st.lists(st.integers(0, 100), min_size=rows, max_size=rows))
    return datatype, np.array(values, KINDS[datatype]).tobytes()


@st.composite
def damaged_bytes(draw: st.DrawFn, blob: bytes) -> bytes:
    """Bytes that are cut, extended, changed at one place, or random."""
    way = draw(st.sampled_from(["cut", "more", "flip", "random"]))
    if way == "cut":
        return blob[: draw(st.integers(0, len(blob)))]
    if way == "more":
        return blob + draw(st.binary(min_size=1, max_size=9))
    if way == "flip" and blob:
        at = draw(st.integers(0, len(blob) - 1))
        return blob[:at] + draw(st.binary(min_size=1, max_size=1)) + blob[at + 1 :]
    return draw(st.binary(max_size=40))


@st.composite
def requests(draw: st.DrawFn, *, damage: bool) -> tuple[bytes, dict[str, str], int]:
    """The body and the headers of a request, and its number of rows. With `damage`, something in it is
    wrong."""
    rows = draw(st.integers(1, 4))
    inputs: list[dict[str, Any]] = []
    parts: list[bytes] = []
    for name in NAMES:
        datatype, blob = draw(blobs(rows, name))
        tensor: dict[str, Any] = {"name": name, "shape": [rows], "datatype": datatype}
        tensor["parameters"] = {"binary_data_size": len(blob)}
        inputs.append(tensor)
        parts.append(blob)
    header: Any = {"inputs": inputs, "parameters": {"binary_data_output": draw(st.booleans())}}
    shift = 0
    if damage:
        number, tensor = draw(st.sampled_from(list(enumerate(inputs))))
        what = draw(
            st.sampled_from(["bytes", "size", "shape", "datatype", "both", "twice", "length", "header"])
        )
        event(what)
        if what == "bytes":
            parts[number] = draw(damaged_bytes(parts[number]))
            if draw(st.booleans()):
                tensor["parameters"]["binary_data_size"] = len(parts[number])
        elif what == "size":
            tensor["parameters"]["binary_data_size"] = draw(ODD | st.integers(-9, 99))
        elif what == "shape":
            tensor["shape"] = draw(ODD_SHAPES)
        elif what == "datatype":
            tensor["datatype"] = draw(st.sampled_from([*KINDS, "BYTES", "BF16", "x", None, 1]))
        elif what == "both":
            tensor["data"] = draw(st.lists(st.integers() | st.text(max_size=3), max_size=4))
        elif what == "twice":
            inputs.append(draw(st.sampled_from(inputs)))
        elif what == "length":
            shift = draw(st.integers(-20, 20))
        else:
            header = draw(ODD | st.just({"inputs": [[]]}) | st.just({"inputs": {"a": 1}}))
    text = json.dumps(header).encode()
    length = str(len(text) + shift)
    if damage and draw(st.integers(0, 9)) == 0:
        length = draw(st.sampled_from(["", "x", "-1", "0", str(2**64), "1" * 5000, "٣"]))
    return text + b"".join(parts), {"Inference-Header-Content-Length": length}, rows


class Server:
    """The application of a replica in an event loop of its own."""

    def __init__(self, runner: asyncio.Runner, folder: Path) -> None:
        self.runner = runner

        async def make() -> None:
            app, self.hosted = application(order_of(linear_model(folder / "m")), folder)
            self.call = asgi_client(app)

        runner.run(make())

    def infer(self, body: bytes, headers: dict[str, str]) -> Reply:
        async def call() -> Reply:
            return await self.call("/v2/models/weather/infer", body, headers=headers)

        return self.runner.run(call())

    def close(self) -> None:
        for one in self.hosted:
            one.batcher.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with asyncio.Runner() as runner:
        made = Server(runner, tmp_path_factory.mktemp("fuzz"))
        yield made
        made.close()


fuzzed = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@fuzzed
@given(request=requests(damage=False))
def test_each_valid_request_gets_one_prediction_for_each_row(
    server: Server, request: tuple[bytes, dict[str, str], int]
) -> None:
    body, headers, rows = request
    reply = server.infer(body, headers)
    assert reply.status == 200, reply.body
    length = int(reply.headers.get("inference-header-content-length", len(reply.body)))
    (output,) = json.loads(reply.body[:length])["outputs"]
    assert output["shape"] == [rows]
    assert len(reply.body) - length in (0, 8 * rows)


@fuzzed
@given(request=requests(damage=True))
def test_no_damaged_request_is_an_error_of_the_server(
    server: Server, request: tuple[bytes, dict[str, str], int]
) -> None:
    reply = server.infer(*request[:2])
    assert reply.status < 500, reply.body
    if reply.status != 200:
        assert json.loads(reply.body)["error"]


@fuzzed
@given(body=st.binary(max_size=300), length=st.integers(0, 300))
def test_random_bytes_are_an_error_of_the_client(server: Server, body: bytes, length: int) -> None:
    reply = server.infer(body, {"Inference-Header-Content-Length": str(length)})
    assert 400 <= reply.status < 500, reply.body
