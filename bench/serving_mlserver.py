"""MLServer beside ours: the runtime that `mlserver start` loads, in an environment with MLServer.

The variable GRIDMILL_BENCH_MODEL names the folder of the model."""

import os
from pathlib import Path

from mlserver import MLModel  # type: ignore[import-not-found]
from mlserver.codecs import NumpyCodec  # type: ignore[import-not-found]
from mlserver.types import InferenceRequest, InferenceResponse  # type: ignore[import-not-found]

from bench.serving_peers import predictor_of


class Runtime(MLModel):  # type: ignore[misc]
    """Predicts for one tensor. MLServer joins the tensors of several requests before the call."""

    async def load(self) -> bool:
        self.predictor = predictor_of(Path(os.environ["GRIDMILL_BENCH_MODEL"]))
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        output = self.predictor.predict(NumpyCodec.decode_input(payload.inputs[0]))
        return InferenceResponse(
            model_name=self.name, outputs=[NumpyCodec.encode_output("prediction", output)]
        )
