"""scikit-learn's histogram trees as an ONNX tree ensemble: the same answers.

Thresholds are compared as doubles. ONNX Runtime gives a row's sum of leaves as a single float, so the base,
and a label's mean and deviation, are outside of the trees.
"""

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from onnx import numpy_helper
from sklearn.ensemble import HistGradientBoostingRegressor

from gridmill.jobs.features import Floats, Integers
from gridmill.jobs.training.graph import Graph
from gridmill.jobs.training.units import Units

Kind = TypeVar("Kind", bound=np.generic)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trees:
    """All nodes of all trees, one array entry per node; `base` is what the trees add to, per class."""

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
    """The trees of a fitted model (regressor or classifier), which scikit-learn keeps in private fields."""
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


def tree_graph(trees: Trees, width: int, classes: int, units: Units, scale: float = 1.0) -> bytes:
    """The graph: the sum of a row's leaves and of the base, in the label's units, or as probabilities.
    The trees have learned from the inputs times `scale`."""
    graph, leaf = Graph(), trees.leaf
    known = graph.known()
    seen = known if scale == 1 else graph.add("Mul", known, graph.constant(scale))
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
    return graph.finish(units.add_to(graph, scores, known), width)
