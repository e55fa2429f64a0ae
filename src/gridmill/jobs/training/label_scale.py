"""Standardises a label around a base for learning, and converts predictions back to the label's units."""

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
    """Labels are base + (mean + deviation * a model's numbers) / scale.

    Mean, deviation and base are added as doubles, outside what a model computes in single floats: a label of
    1.7e9 ± 1 keeps its ± 1. Classes have no units.
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
        """Per label how much 1 of the model's numbers is."""
        spread = self._spread
        return spread.deviation / spread.scale

    def standardized(self, target: Floats, inputs: Floats) -> Floats:
        """What is learned, [rows, labels], of labels [rows] or [rows, labels] and the rows' inputs."""
        return self._spread.standardized(_matrix(target - self.base.values(inputs)))

    def labels(self, numbers: Floats, newest: Floats) -> Floats:
        """Labels [rows] or [rows, labels] of a model's numbers; `newest` are the basis rows' inputs."""
        labels = (numbers.reshape(len(numbers), -1) * self.deviation + self.mean) / self.scale
        labels = labels + _matrix(self.base.values(newest))
        return labels if len(self.mean) > 1 else labels[:, 0]

    def add_to(self, graph: GraphBuilder, numbers: str, newest: str) -> str:
        """The same in a graph, from doubles [rows, labels]."""
        node = graph.add("Mul", numbers, graph.constant(self.deviation))
        node = graph.add("Add", node, graph.constant(self.mean))
        if self._spread.is_scaled:
            node = graph.add("Div", node, graph.constant(self.scale))
        return self.base.add_to(graph, node if len(self.mean) > 1 else graph.flat(node), newest)


def fit_units(frame: SortedFrame, changes: bool) -> LabelScale:
    """The units of the training rows' labels; `changes`: around their present values, where there are any."""
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
    """[rows, labels], also of one label."""
    return values.reshape(len(values), -1)
