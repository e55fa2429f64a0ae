"""How many rows per second a service answers in one request: an Arrow stream against JSON lines."""

import http.client
import json
from functools import partial
from importlib import import_module
from pathlib import Path

import numpy as np
import pyarrow as pa

from bench.contestants import short_folder
from bench.measure import Result, alternate, row, save, timed

AREA = "Real-time predictions"
ROWS, ROUNDS = 10_000, 9
HOW = f"""
Arrow: one request with {ROWS:,} rows of two numbers and a text to `POST /predict` of a service with one
replica and a linear model, as JSON lines and as an Arrow stream that is also answered by a stream, in turns.
The time includes the transfer at 127.0.0.1.
"""
ARROW = "application/vnd.apache.arrow.stream"
LINES = "application/x-ndjson"
_MODELS, _SERVICES = (import_module(f"tests.kit.{name}") for name in ("served_models", "services"))


def main() -> None:
    table = _table()
    with short_folder() as folder:
        order = _MODELS.order_of(_MODELS.linear_model(Path(folder) / "m"))
        with _SERVICES.Service(Path(folder) / "s", order) as service:
            connection = http.client.HTTPConnection("127.0.0.1", service.report().port, timeout=60)
            bodies = {LINES: _lines(table), ARROW: _stream(table)}
            acts = {kind: partial(_timed, connection, kind, body) for kind, body in bodies.items()}
            taken = alternate(acts, rounds=ROUNDS)
            connection.close()
    lines, arrow = taken[LINES].median, taken[ARROW].median
    results: list[Result] = [
        row(AREA, f"rows of JSON lines in a request of {ROWS:,}", ROWS / lines, "rows/s"),
        row(AREA, f"rows of an Arrow stream in a request of {ROWS:,}", ROWS / arrow, "rows/s"),
        row(AREA, "an Arrow stream against JSON lines", lines / arrow, "times the rows"),
    ]
    save("arrow-batches", results, how=HOW)


def _table() -> pa.Table:
    random = np.random.default_rng(0)
    columns = {name: random.normal(size=ROWS) for name in _MODELS.FIELDS[:2]}
    return pa.table({**columns, _MODELS.FIELDS[2]: random.choice(_MODELS.CITIES, ROWS)})


def _lines(table: pa.Table) -> bytes:
    return "\n".join(map(json.dumps, table.to_pylist())).encode()


def _stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _timed(connection: http.client.HTTPConnection, kind: str, body: bytes) -> float:
    return timed(partial(_ask, connection, kind, body))


def _ask(connection: http.client.HTTPConnection, kind: str, body: bytes) -> None:
    connection.request("POST", "/predict", body, {"Content-Type": kind, "Accept": kind})
    reply = connection.getresponse()
    if reply.status != 200 or not reply.read():
        raise RuntimeError(f"{kind} got status {reply.status}")


if __name__ == "__main__":
    main()
