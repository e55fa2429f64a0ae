"""Gradient-boosted trees (the histogram-based trees of scikit-learn) with early stopping on the validation
split.

The trees are converted to an ONNX tree ensemble that makes the same predictions. The ONNX graph compares
inputs with thresholds as doubles. ONNX Runtime returns the sum of the leaves of a row as a 32-bit float. The
graph adds the base, and the mean and deviation of a label, outside of the trees.
"""

from typing import TypeVar

import numpy as np
import numpy.typing as npt
from onnx import numpy_helper
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from threadpoolctl import threadpool_limits

from gridmill.domain.frozen import dataclass
from gridmill.domain.training import Objective, TrainingSpec
from gridmill.errors import InputError
from gridmill.jobs.context import JobContext
from gridmill.jobs.features import Floats, Integers
from gridmill.jobs.training.data import SortedFrame
from gridmill.jobs.training.label_scale import LabelScale, fit_units
from gridmill.jobs.training.onnx_graph import GraphBuilder
from gridmill.jobs.training.result import FittedModel, TrainedModel

Kind = TypeVar("Kind", bound=np.generic)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trees:
    """All nodes of all trees, with one array entry for each node. `base` contains for each class the value
    to which the sum of the trees is added."""

    tree: Integers
    node: Integers
    output: Integers
    leaf: npt.NDArray[np.bool_]
    feature: Integers
    threshold: Floats
    left: Integers
    right: Integers
    missing_left: Integers
    value: Floats
    gain: Floats
    base: Floats


def collect_trees(model: HistGradientBoostingRegressor) -> Trees:
    """Return the trees of a fitted model (regressor or classifier). scikit-learn stores them in private
    fields."""
    trees = [(output, tree.nodes) for step in model._predictors for output, tree in enumerate(step)]
    sizes = [len(nodes) for _, nodes in trees]

    def every(name: str, kind: type[Kind]) -> npt.NDArray[Kind]:
        return np.concatenate([nodes[name].astype(kind) for _, nodes in trees])

    return Trees(
        tree=np.repeat(np.arange(len(trees)), sizes),
        node=np.concatenate([np.arange(size) for size in sizes]),
        output=np.repeat([output for output, _ in trees], sizes),
        leaf=every("is_leaf", np.bool_),
        feature=every("feature_idx", np.int64),
        threshold=every("num_threshold", np.float64),
        left=every("left", np.int64),
        right=every("right", np.int64),
        missing_left=every("missing_go_to_left", np.int64),
        value=every("value", np.float64),
        gain=every("gain", np.float64),
        base=np.asarray(model._baseline_prediction, np.float64).reshape(-1),
    )


def tree_graph(trees: Trees, width: int, classes: int, units: LabelScale, scale: float = 1.0) -> bytes:
    """Return the graph that adds the leaves of a row and the base. The result is in the units of the label,
    or a probability of each class.

    The trees were trained on inputs that were multiplied by `scale`.
    """
    graph, leaf = GraphBuilder(), trees.leaf
    inputs = graph.finite_inputs()
    seen = inputs if scale == 1 else graph.add("Mul", inputs, graph.constant(scale))
    scores = graph.add(
        "TreeEnsembleRegressor",
        seen,
        domain="ai.onnx.ml",
        n_targets=len(trees.base),
        nodes_treeids=trees.tree.tolist(),
        nodes_nodeids=trees.node.tolist(),
        nodes_featureids=trees.feature.tolist(),
        nodes_modes=["LEAF" if last else "BRANCH_LEQ" for last in leaf],
        nodes_values_as_tensor=numpy_helper.from_array(np.where(leaf, 0.0, trees.threshold)),
        nodes_truenodeids=trees.left.tolist(),
        nodes_falsenodeids=trees.right.tolist(),
        nodes_missing_value_tracks_true=trees.missing_left.tolist(),
        target_treeids=trees.tree[leaf].tolist(),
        target_nodeids=trees.node[leaf].tolist(),
        target_ids=trees.output[leaf].tolist(),
        target_weights_as_tensor=numpy_helper.from_array(trees.value[leaf]),
    )
    scores = graph.add("Add", graph.doubles(scores), graph.constant(trees.base))
    if classes:
        return graph.finish(graph.probabilities(scores, classes), width, outputs=classes)
    return graph.finish(units.add_to(graph, scores, inputs), width)


LEARNING_RATE, PATIENCE = 0.1, 20
_THEIRS = {"trees": "max_iter", "max_leaves": "max_leaf_nodes", "patience": "n_iter_no_change"}
"""The names that scikit-learn uses for the options of Gridmill."""
CURVE_POINTS = 100
TOLERANCE = 1e-5
"""The allowed difference between the predictions of the stored graph and of scikit-learn, in standard
deviations of the label, or in probability."""
LARGEST, SMALLER = 1e290, 2.0**-100
"""Limits for inputs, because the bins of scikit-learn end at 1e300. For training, larger inputs are
multiplied by a power of two. The multiplication by a power of two is exact except for values below
1e-280."""


def fit(frame: SortedFrame, spec: TrainingSpec, context: JobContext) -> FittedModel:
    """Train a model of trees on the training rows. The trees use missing values directly, without replacing
    them."""
    options = {
        "learning_rate": spec.learning_rate or LEARNING_RATE,
        "trees": spec.trees,
        "max_leaves": spec.max_leaves,
        "patience": spec.patience or PATIENCE,
    }
    if len(frame.subject.labels) > 1:
        raise InputError(
            f"a gbdt model needs exactly one label, but the dataset has {len(frame.subject.labels)}",
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
    context.progress(model.n_iter_, spec.trees, "trees", note=f"stopped after {model.n_iter_} trees")
    trees = collect_trees(model)
    return FittedModel(
        trained=_trained(model, units, scale),
        graph=tree_graph(trees, len(frame.names), len(frame.classes), units, scale),
        presents=units.base.presents,
        curve=curve,
        importance=_importance(frame, trees),
        options={**options, "trees_used": int(model.n_iter_), "residual": units.base.used},
        libraries=("scikit-learn",),
    )


def _fit(
    frame: SortedFrame, units: LabelScale, seed: int, options: dict[str, float]
) -> tuple[HistGradientBoostingRegressor, float]:
    """Return the trained model, and the factors by which its inputs were multiplied."""
    regression = frame.objective == Objective.REGRESSION
    kind = HistGradientBoostingRegressor if regression else HistGradientBoostingClassifier
    rows, held = frame.rows["train"], frame.rows["validation"]
    # left out, because a class without training rows has no score
    held = held[frame.target[held] >= 0] if not regression else held
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


def _trained(model: HistGradientBoostingRegressor, units: LabelScale, scale: float) -> TrainedModel:
    def predict(inputs: Floats) -> Floats:
        with threadpool_limits(limits=1):  # trees are small, so that threads would mostly wait for each other
            if isinstance(model, HistGradientBoostingClassifier):
                values: Floats = model.predict_proba(inputs * scale)
                return values
            return units.labels(model.predict(inputs * scale), inputs)

    return TrainedModel(predict=predict, tolerance=lambda _: TOLERANCE * units.label_deviation)


def _make_learnable(learned: Floats, held: Floats) -> float:
    """Make the inputs suitable for the binning of scikit-learn, in place. Return the factors by which the
    inputs were multiplied.

    Inputs that are missing in all training rows become 0, so that no tree splits by them.
    """
    empty = np.isnan(learned).all(axis=0)
    largest = max(np.fmax.reduce(learned, axis=None), -np.fmin.reduce(learned, axis=None))
    scale = SMALLER if largest > LARGEST else 1.0
    for inputs in (learned, held):
        inputs[:, empty] = 0.0
        if scale != 1:
            inputs *= scale
    return scale


def _curve(model: HistGradientBoostingRegressor) -> tuple[tuple[float, float, float], ...]:
    """Return the learning curve [[trees, training loss, validation loss]]. The scores of scikit-learn are
    negative losses."""
    learned, validated = -np.asarray(model.train_score_), -np.asarray(model.validation_score_)
    last = len(validated) - 1
    points = sorted({round(point) for point in np.linspace(0, last, min(last + 1, CURVE_POINTS))})
    return tuple((float(point), float(learned[point]), float(validated[point])) for point in points)


def _importance(frame: SortedFrame, trees: Trees) -> dict[str, float]:
    """Return for each input the fraction of the loss reduction of all splits that is due to this input."""
    gain = np.bincount(
        trees.feature, weights=np.where(trees.leaf, 0.0, trees.gain), minlength=len(frame.names)
    )
    total = float(gain.sum()) or 1.0
    return {name: float(value) / total for name, value in zip(frame.names, gain, strict=True)}
