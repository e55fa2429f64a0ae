"""LitServe beside ours: `python -m bench.serving_litserve PORT MODEL`, in an environment with LitServe."""

import sys
from pathlib import Path
from typing import Any

import litserve  # type: ignore[import-not-found]

from bench.serving_peers import predictions, predictor_of

MAX_BATCH = 64


class Api(litserve.LitAPI):  # type: ignore[misc]
    """Predicts for the rows of several requests in one call."""

    def __init__(self, folder: Path) -> None:
        super().__init__(max_batch_size=MAX_BATCH)
        self.folder = folder

    def setup(self, device: str) -> None:
        self.predictor = predictor_of(self.folder)

    def decode_request(self, request):  # type: ignore[no-untyped-def]  # LitServe reads a type as a field
        return request["rows"]

    def batch(self, inputs: Any) -> Any:
        return inputs

    def predict(self, x: Any) -> Any:
        flat = iter(predictions(self.predictor, [row for rows in x for row in rows]))
        return [[next(flat) for _ in rows] for rows in x]

    def unbatch(self, output: Any) -> Any:
        return output

    def encode_response(self, output: Any) -> Any:
        return {"predictions": output}


def main() -> None:
    port, folder = sys.argv[1:]
    server = litserve.LitServer(Api(Path(folder)), accelerator="cpu", fast_queue=True)
    server.run(
        host="127.0.0.1",
        port=int(port),
        num_api_servers=1,
        generate_client_file=False,
        access_log=False,
        log_level="error",
    )


if __name__ == "__main__":
    main()
