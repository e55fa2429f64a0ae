"""BentoML beside ours: `bentoml serve bench.serving_bentoml:Predictor`, in an environment with BentoML. The
variable GRIDMILL_BENCH_MODEL names the folder of the model."""

import os
from pathlib import Path
from typing import Any

import bentoml  # type: ignore[import-not-found]

from bench.serving_peers import body_model, predictions, predictor_of

predictor = predictor_of(Path(os.environ["GRIDMILL_BENCH_MODEL"]))
Rows: Any = body_model(predictor.card)


@bentoml.service(workers=1, logging={"access": {"enabled": False}})
class Predictor:
    """One worker, which is the default of `bentoml serve`."""

    @bentoml.api(route="/predict")  # type: ignore[untyped-decorator]
    async def predict(self, rows: Rows) -> dict:  # type: ignore[type-arg]
        return {"predictions": predictions(predictor, rows)}
