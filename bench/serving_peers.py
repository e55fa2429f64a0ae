"""The servers beside ours: `python -m bench.serving_peers bare|fastapi PORT MODEL`.

`bare` decodes the same payload on the same HTTP library and answers a constant: no server on this library can
be quicker. `fastapi` validates by pydantic and predicts in an `async` route, with the model of Gridmill.

Peers with an environment of their own find Gridmill and its libraries in the folders that PATHS names, after
their own libraries.
"""

import os
import sys
from pathlib import Path
from typing import Any

PATHS = "GRIDMILL_BENCH_PATHS"
QUIET = {"access_log": False, "log_level": "error"}


def _fields(card: Any) -> list[tuple[str, Any]]:
    return [(one.column, (float if one.categories is None else str) | None) for one in card.encodings]


def predictor_of(folder: Path) -> Any:
    from gridmill.jobs.model_files import load_model

    return load_model(folder)


def body_model(card: Any) -> Any:
    from pydantic import create_model

    fields: dict[str, Any] = {name: (kind, ...) for name, kind in _fields(card)}
    row = create_model("Row", **fields)
    return list[row] if card.sequence is None else list[list[row]]  # type: ignore[valid-type]


def _inputs(card: Any, row: Any) -> list[float]:
    """The numbers of a row: an object of pydantic or a dict."""
    values: list[float] = []
    for encoding in card.encodings:
        value = row[encoding.column] if isinstance(row, dict) else getattr(row, encoding.column)
        categories = encoding.categories
        values += [value] if categories is None else [float(value == name) for name in categories]
    return values


def inputs_of(card: Any, rows: Any) -> Any:
    """The array that the model reads: [rows, columns], or [rows, steps, columns] for windows."""
    import numpy as np

    if card.sequence is None:
        return np.array([_inputs(card, one) for one in rows], np.float64)
    return np.array([[_inputs(card, one) for one in window] for window in rows], np.float64)


def predictions(predictor: Any, rows: Any) -> list[dict[str, Any]]:
    matrix = inputs_of(predictor.card, rows)
    return [{"prediction": one} for one in predictor.predict(matrix).tolist()]


def bare(port: int, folder: Path) -> None:
    import msgspec

    card = predictor_of(folder).card
    row = msgspec.defstruct("Row", _fields(card))
    rows = list[row] if card.sequence is None else list[list[row]]  # type: ignore[valid-type]
    decoder = msgspec.json.Decoder(msgspec.defstruct("Body", [("rows", rows)]))
    encode = msgspec.json.Encoder().encode

    async def app(scope: Any, receive: Any, send: Any) -> None:
        decoder.decode((await receive())["body"])
        body = encode({"predictions": [{"prediction": 1.0}]})
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    _serve(app, port)


def fastapi(port: int, folder: Path) -> None:
    from fastapi import FastAPI
    from pydantic import create_model

    predictor = predictor_of(folder)
    asked: Any = create_model("Body", rows=(body_model(predictor.card), ...))
    app = FastAPI()

    @app.post("/predict")
    async def predict(body: asked) -> dict[str, Any]:
        return {"predictions": predictions(predictor, body.rows)}

    _serve(app, port)


def _serve(app: Any, port: int) -> None:
    import uvicorn

    uvicorn.run(app, port=port, http="httptools", loop="auto", lifespan="off", server_header=False, **QUIET)  # type: ignore[arg-type]


sys.path += [one for one in os.environ.get(PATHS, "").split(os.pathsep) if one]

if __name__ == "__main__":
    {"bare": bare, "fastapi": fastapi}[sys.argv[1]](int(sys.argv[2]), Path(sys.argv[3]))
