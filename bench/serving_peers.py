"""The servers beside ours: `python -m bench.serving_peers bare|fastapi PORT MODEL`.

`bare` decodes the same payload on the same HTTP library and answers a constant: no server on this library can
be quicker. `fastapi` validates by pydantic and predicts with the same loaded model.
"""

import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import uvicorn

from gridmill.jobs.features import Encoding
from gridmill.jobs.model_files import load_model


def _fields(encodings: tuple[Encoding, ...]) -> list[tuple[str, Any]]:
    return [(one.column, (float if one.categories is None else str) | None) for one in encodings]


def bare(folder: Path) -> Any:
    card = load_model(folder).card
    row = msgspec.defstruct("Row", _fields(card.encodings))
    rows = list[row] if card.sequence is None else list[list[row]]  # type: ignore[valid-type]
    decoder = msgspec.json.Decoder(msgspec.defstruct("Body", [("rows", rows)]))
    encode = msgspec.json.Encoder().encode

    async def app(scope: Any, receive: Any, send: Any) -> None:
        decoder.decode((await receive())["body"])
        body = encode({"predictions": [{"prediction": 1.0}]})
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return app


def fastapi(folder: Path) -> Any:
    from fastapi import FastAPI
    from pydantic import create_model

    predictor = load_model(folder)
    card = predictor.card
    fields: dict[str, Any] = {name: (kind, ...) for name, kind in _fields(card.encodings)}
    row = create_model("Row", **fields)
    rows = list[row] if card.sequence is None else list[list[row]]  # type: ignore[valid-type]
    asked: Any = create_model("Body", rows=(rows, ...))
    app = FastAPI()

    def inputs(one: Any) -> list[float]:
        values: list[float] = []
        for encoding in card.encodings:
            value = getattr(one, encoding.column)
            categories = encoding.categories
            values += [value] if categories is None else [float(value == name) for name in categories]
        return values

    @app.post("/predict")
    async def predict(body: asked) -> dict[str, Any]:
        if card.sequence is None:
            matrix = np.array([inputs(one) for one in body.rows], np.float64)
        else:
            matrix = np.array([[inputs(one) for one in window] for window in body.rows], np.float64)
        return {"predictions": [{"prediction": one} for one in predictor.predict(matrix).tolist()]}

    return app


def main() -> None:
    name, port, folder = sys.argv[1:]
    app = {"bare": bare, "fastapi": fastapi}[name](Path(folder))
    uvicorn.run(
        app,
        port=int(port),
        http="httptools",
        loop="auto",
        access_log=False,
        log_level="error",
        lifespan="off",
        server_header=False,
    )


if __name__ == "__main__":
    main()
