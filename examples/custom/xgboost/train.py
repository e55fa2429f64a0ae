"""An XGBoost model as a custom training, kept in XGBoost's own format, which cannot run code."""

from functools import cache

import xgboost


def fit(data):
    model = xgboost.XGBClassifier(n_estimators=100, early_stopping_rounds=10, random_state=data.seed)
    held = [(data.inputs[data.validation], data.target[data.validation])]
    model.fit(data.inputs[data.train], data.target[data.train], eval_set=held, verbose=False)
    for step, loss in enumerate(model.evals_result()["validation_0"]["logloss"]):
        data.metric("validation_loss", loss, step=step)
    model.save_model(data.output / "xgboost.ubj")
    return {"trees": model.best_iteration + 1}


@cache
def load(folder):
    model = xgboost.XGBClassifier()
    model.load_model(folder / "xgboost.ubj")
    return model


def predict(folder, inputs):
    return load(folder).predict_proba(inputs)
