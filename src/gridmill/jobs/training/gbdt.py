"""Gradient-boosted trees (scikit-learn's histogram ones), stopped early on the validation split."""

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from threadpoolctl import threadpool_limits

from gridmill.errors import InputError
from gridmill.jobs.context import JobContext
from gridmill.jobs.features import Floats
from gridmill.jobs.training.fitted import Fitted, Trained
from gridmill.jobs.training.frame import Frame
from gridmill.jobs.training.trees import Trees, collect_trees, tree_graph
from gridmill.jobs.training.units import Units, fit_units
from gridmill.model.training import Objective, TrainingSpec

LEARNING_RATE, PATIENCE = 0.1, 20
_THEIRS = {"trees": "max_iter", "max_leaves": "max_leaf_nodes", "patience": "n_iter_no_change"}
"""scikit-learn's names of our options."""
CURVE_POINTS = 100
TOLERANCE = 1e-5
"""How far the file may be from scikit-learn's model, in deviations of the label, or of a probability."""
LARGEST, SMALLER = 1e290, 2.0**-100
"""scikit-learn's bins end at 1e300; inputs beyond are learned from times a power of two, which is exact but
for values below 1e-280."""


def fit(frame: Frame, spec: TrainingSpec, context: JobContext) -> Fitted:
    """Fit on the training rows. Missing values are learned from; they need no filling."""
    options = {
        "learning_rate": spec.learning_rate or LEARNING_RATE,
        "trees": spec.trees,
        "max_leaves": spec.max_leaves,
        "patience": spec.patience or PATIENCE,
    }
    if len(frame.subject.labels) > 1:
        raise InputError(
            f"a gbdt model learns one label; the dataset has {len(frame.subject.labels)}",
            hint="Use lstm, mlp or linear, or a dataset with one label.",
            place="training.model",
        )
    units = fit_units(frame, spec.residual)
    context.progress(0, spec.trees, "trees")
    with threadpool_limits(limits=context.threads):
        model, scale = _fit(frame, units, spec.seed, options)
    curve = _curve(model)
    for tree, learned, validated in curve:
        context.metric("train_loss", learned, step=tree)
        context.metric("validation_loss", validated, step=tree)
    context.progress(model.n_iter_, spec.trees, "trees", note=f"ended after {model.n_iter_} trees")
    trees = collect_trees(model)
    return Fitted(
        trained=_trained(model, units, scale),
        graph=tree_graph(trees, len(frame.names), len(frame.classes), units, scale),
        presents=units.base.presents,
        curve=curve,
        importance=_importance(frame, trees),
        options={**options, "trees_used": int(model.n_iter_), "residual": units.base.used},
        libraries=("scikit-learn",),
    )


def _fit(
    frame: Frame, units: Units, seed: int, options: dict[str, float]
) -> tuple[HistGradientBoostingRegressor, float]:
    """The model, and what its inputs were multiplied by."""
    regression = frame.objective == Objective.REGRESSION
    kind = HistGradientBoostingRegressor if regression else HistGradientBoostingClassifier
    rows, held = frame.rows["train"], frame.rows["validation"]
    held = held[frame.target[held] >= 0] if not regression else held  # a class never seen cannot be scored
    target = units.standardized(frame.target, frame.inputs)[:, 0] if regression else frame.target
    named = {_THEIRS.get(name, name): value for name, value in options.items()}
    model = kind(early_stopping=True, random_state=seed, **named)
    learned, watched = frame.inputs[rows], frame.inputs[held]
    scale = _make_learnable(learned, watched)
    fitted = model.fit(
        learned,
        target[rows],
        sample_weight=frame.weights_of(rows),
        X_val=watched,
        y_val=target[held],
        sample_weight_val=frame.weights_of(held),
    )
    return fitted, scale


def _trained(model: HistGradientBoostingRegressor, units: Units, scale: float) -> Trained:
    def predict(inputs: Floats) -> Floats:
        with threadpool_limits(limits=1):  # for each tree, several threads would wait for each other
            if isinstance(model, HistGradientBoostingClassifier):
                found: Floats = model.predict_proba(inputs * scale)
                return found
            return units.labels(model.predict(inputs * scale), inputs)

    return Trained(predict=predict, tolerance=lambda _: TOLERANCE * units.label_deviation)


def _make_learnable(learned: Floats, held: Floats) -> float:
    """Make inputs that scikit-learn can bin, in place; returns what they were multiplied by. Those that all
    rows to learn from miss become 0: nothing is split by them."""
    empty = np.isnan(learned).all(axis=0)
    largest = max(np.fmax.reduce(learned, axis=None), -np.fmin.reduce(learned, axis=None))
    scale = SMALLER if largest > LARGEST else 1.0
    for inputs in (learned, held):
        inputs[:, empty] = 0.0
        if scale != 1:
            inputs *= scale
    return scale


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
