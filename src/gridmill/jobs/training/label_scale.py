"""Standardises a label around a base for training, and converts predictions back to the units of the
label."""

from dataclasses import field

import numpy as np

from gridmill.domain.frozen import dataclass
from gridmill.domain.training import Objective
from gridmill.jobs.features import Floats
from gridmill.jobs.training.data import SortedFrame
from gridmill.jobs.training.naive import BaselineInputs, fit_base
from gridmill.jobs.training.onnx_graph import GraphBuilder
from gridmill.jobs.training.scaling import ColumnScale, fit_spread


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelScale:
    """The scale of labels. A label is base + (mean + deviation * n) / scale, where n is the number that the
    model returns.

    Mean, deviation and base are added as doubles, outside of the 32-bit computation of the model. Because of
    the additions as doubles, a label of 1.7e9 ± 1 does not lose its ± 1. Class labels have no scale.
    """

    base: BaselineInputs = field(default_factory=BaselineInputs)
    mean: tuple[float, ...] = (0.0,)
    deviation: tuple[float, ...] = (1.0,)
    scale: tuple[float, ...] = (1.0,)

    @property
    def _spread(self) -> ColumnScale:
        return ColumnScale(
            mean=np.array(self.mean), deviation=np.array(self.deviation), scale=np.array(self.scale)
        )

    @property
    def label_deviation(self) -> Floats:
        """Return for each label the amount by which it changes if the number that the model returns changes
        by 1."""
        spread = self._spread
        return spread.deviation / spread.scale

    def standardized(self, target: Floats, inputs: Floats) -> Floats:
        """Return the target for training [rows, labels], from labels [rows] or [rows, labels] and the inputs
        of the rows."""
        return self._spread.standardized(_matrix(target - self.base.values(inputs)))

    def labels(self, numbers: Floats, newest: Floats) -> Floats:
        """Return labels [rows] or [rows, labels] from the numbers that a model returns. `newest` are the
        inputs of the predicted rows themselves."""
        labels = (numbers.reshape(len(numbers), -1) * self.deviation + self.mean) / self.scale
        labels = labels + _matrix(self.base.values(newest))
        return labels if len(self.mean) > 1 else labels[:, 0]

    def add_to(self, graph: GraphBuilder, numbers: str, newest: str) -> str:
        """Add the computation of `labels` as nodes to a graph, from doubles [rows, labels]."""
        node = graph.add("Mul", numbers, graph.constant(self.deviation))
        node = graph.add("Add", node, graph.constant(self.mean))
        if self._spread.is_scaled:
            node = graph.add("Div", node, graph.constant(self.scale))
        return self.base.add_to(graph, node if len(self.mean) > 1 else graph.flat(node), newest)


def fit_units(frame: SortedFrame, changes: bool) -> LabelScale:
    """Return the scale of the labels in the training rows. If `changes` is true, labels are relative to
    their present values, if these values exist."""
    if frame.objective == Objective.CLASSIFICATION:
        return LabelScale()
    rows, base = frame.rows["train"], fit_base(frame, changes)
    spread = fit_spread(_matrix((frame.target - base.values(frame.inputs))[rows]))
    return LabelScale(
        base=base,
        mean=tuple(spread.mean.tolist()),
        deviation=tuple(spread.deviation.tolist()),
        scale=tuple(spread.scale.tolist()),
    )


def _matrix(values: Floats) -> Floats:
    """Return the labels in the shape [rows, labels], also if there is only one label."""
    return values.reshape(len(values), -1)
