"""A scikit-learn model as a custom training: `fit` gets the data, `predict` the model's folder."""

from functools import cache

import joblib
from sklearn.svm import SVC


def fit(data):
    model = SVC(probability=True, C=data.options.get("C", 10.0), random_state=data.seed)
    model.fit(data.inputs[data.train], data.target[data.train])
    joblib.dump(model, data.output / "model.joblib")
    return {"support_vectors": len(model.support_)}


@cache
def load(folder):
    return joblib.load(folder / "model.joblib")


def predict(folder, inputs):
    return load(folder).predict_proba(inputs)
