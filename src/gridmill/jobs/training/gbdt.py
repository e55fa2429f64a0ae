"""Gradient-boosted trees (scikit-learn's histogram ones), stopped early on the validation split."""

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from threadpoolctl import threadpool_limits

from gridmill.errors import InputError
from gridmill.jobs.context import JobContext
from gridmill.jobs.features import Floats, Integers
from gridmill.jobs.training.fitted import Fitted
from gridmill.jobs.training.frame import Frame
from gridmill.jobs.training.residual import Base, fit_base
from gridmill.jobs.training.trees import Trees, collect_trees, tree_graph
from gridmill.model.training import Objective, TrainingSpec

LEARNING_RATE, PATIENCE = 0.1, 20
CURVE_POINTS = 100


def fit(frame: Frame, spec: TrainingSpec, context: JobContext) -> Fitted:
    """Fit on the training rows. Missing values are learned from; they need no filling."""
    options = {
        "learning_rate": spec.learning_rate or LEARNING_RATE,
        "max_iter": spec.trees,
        "max_leaf_nodes": spec.max_leaves,
        "n_iter_no_change": spec.patience or PATIENCE,
    }
    if len(frame.subject.labels) > 1:
        raise InputError(
            f"a gbdt model learns one label; the dataset has {len(frame.subject.labels)}",
            hint="Use lstm, mlp or linear, or a dataset with one label.",
            place="training.model",
        )
    base = fit_base(frame, spec.residual)
    context.progress(0, spec.trees, "trees")
    with threadpool_limits(limits=context.threads):
        model = _fit(frame, base, spec.seed, options)
    curve = _curve(model)
    for tree, learned, validated in curve:
        context.metric("train_loss", learned, step=tree)
        context.metric("validation_loss", validated, step=tree)
    context.progress(model.n_iter_, spec.trees, "trees", note=f"ended after {model.n_iter_} trees")
    trees = collect_trees(model)
    return Fitted(
        graph=tree_graph(trees, len(frame.names), len(frame.classes), base),
        presents=base.presents,
        curve=curve,
        importance=_importance(frame, trees),
        options={**options, "trees_used": int(model.n_iter_), "residual": base.used},
        libraries=("scikit-learn",),
    )


def _fit(frame: Frame, base: Base, seed: int, options: dict[str, float]) -> HistGradientBoostingRegressor:
    regression = frame.objective == Objective.REGRESSION
    kind = HistGradientBoostingRegressor if regression else HistGradientBoostingClassifier
    rows, held = frame.rows["train"], frame.rows["validation"]
    held = held[frame.target[held] >= 0] if not regression else held  # a class never seen cannot be scored
    target, inputs = frame.target - base.values(frame.inputs), _learnable(frame.inputs, rows)
    model = kind(early_stopping=True, random_state=seed, **options)
    return model.fit(inputs[rows], target[rows], X_val=inputs[held], y_val=target[held])


def _learnable(inputs: Floats, rows: Integers) -> Floats:
    """Inputs that training rows always miss become 0: scikit-learn cannot bin them; it splits on none."""
    empty = np.isnan(inputs[rows]).all(axis=0)
    return np.where(empty, 0.0, inputs) if empty.any() else inputs


def _curve(model: HistGradientBoostingRegressor) -> tuple[tuple[float, float, float], ...]:
    """[[trees, training loss, validation loss]]; scikit-learn's scores are negative losses."""
    learned, validated = -np.asarray(model.train_score_), -np.asarray(model.validation_score_)
    last = len(validated) - 1
    points = sorted({round(point) for point in np.linspace(0, last, min(last + 1, CURVE_POINTS))})
    return tuple((float(point), float(learned[point]), float(validated[point])) for point in points)


def _importance(frame: Frame, trees: Trees) -> dict[str, float]:
    """Each input's share of the loss that all splits took away."""
    gain = np.bincount(
        trees.feature, weights=np.where(trees.leaf, 0.0, trees.gain), minlength=len(frame.names)
    )
    total = float(gain.sum()) or 1.0
    return {name: float(value) / total for name, value in zip(frame.names, gain, strict=True)}
