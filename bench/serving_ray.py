"""Ray Serve beside ours: `python -m bench.serving_ray PORT MODEL FOLDER`, in an environment with Ray Serve.
Ray keeps its files in FOLDER."""

import signal
import sys
from pathlib import Path
from typing import Any

import ray
from ray import serve

from bench.serving_peers import predictions, predictor_of

MAX_BATCH = 64


@serve.deployment(max_ongoing_requests=2 * MAX_BATCH, ray_actor_options={"num_cpus": 1})
class Predictor:
    """One replica that predicts for the rows of several requests in one call."""

    def __init__(self, folder: str) -> None:
        self.predictor = predictor_of(Path(folder))

    @serve.batch(max_batch_size=MAX_BATCH, batch_wait_timeout_s=0)
    async def predict(self, bodies: list[Any]) -> list[Any]:
        flat = iter(predictions(self.predictor, [row for body in bodies for row in body["rows"]]))
        return [{"predictions": [next(flat) for _ in body["rows"]]} for body in bodies]

    async def __call__(self, request: Any) -> Any:
        return await self.predict(await request.json())


def main() -> None:
    port, model, folder = sys.argv[1:]
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=100_000_000,
        _temp_dir=folder,
        _node_ip_address="127.0.0.1",
    )
    serve.start(http_options={"host": "127.0.0.1", "port": int(port)})
    quiet = {"enable_access_log": False, "log_level": "ERROR"}
    application = Predictor.bind(model)  # type: ignore[attr-defined]  # the decorator adds it
    serve.run(application, route_prefix="/predict", logging_config=quiet)
    signal.pause()


if __name__ == "__main__":
    main()
