"""MLflow beside ours: `python -m bench.serving_mlflow MODEL FOLDER`, in an environment with MLflow, saves the
model for `mlflow models serve`."""

import sys
from pathlib import Path
from typing import Any

from mlflow import pyfunc  # type: ignore[import-not-found]

from bench.serving_peers import predictor_of


class Predictor(pyfunc.PythonModel):  # type: ignore[misc]
    """Predicts for one tensor, which the scoring server passes as an array."""

    def load_context(self, context: Any) -> None:
        self.predictor = predictor_of(Path(context.artifacts["model"]))

    def predict(self, context, model_input, params=None):  # type: ignore[no-untyped-def]  # MLflow reads types
        return self.predictor.predict(model_input)


if __name__ == "__main__":
    from bench.serving_mlflow import Predictor as Imported  # pickled by this name, not as a part of __main__

    model, folder = sys.argv[1:]
    pyfunc.save_model(folder, python_model=Imported(), artifacts={"model": model}, pip_requirements=[])
