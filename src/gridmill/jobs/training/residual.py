"""Forecasting the change from the present value: a model that only learns what differs from the naive one."""

from dataclasses import dataclass

import numpy as np

from gridmill.jobs.features import Floats
from gridmill.jobs.training.frame import Frame
from gridmill.jobs.training.graph import Graph
from gridmill.model.training import Objective


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """What a model's number is added to: input `present`, `fallback` where that is missing; 0 if None."""

    present: int | None = None
    fallback: float = 0.0

    def values(self, inputs: Floats) -> Floats:
        """[rows] of inputs [rows, inputs]."""
        if self.present is None:
            return np.zeros(len(inputs))
        present = inputs[:, self.present]
        return np.where(np.isnan(present), self.fallback, present)

    def add_to(self, graph: Graph, value: str, newest: str) -> str:
        """The sum [rows] in a graph; `newest` are the raw inputs [rows, inputs] of the basis rows."""
        if self.present is None:
            return value
        present = graph.add("Gather", newest, graph.constant(self.present, np.int64), axis=1)
        missing = graph.add("IsNaN", present)
        return graph.add("Add", value, graph.add("Where", missing, graph.constant(self.fallback), present))


def fit_base(frame: Frame, wanted: bool) -> Base:
    """The base: none when not wanted, for classes, or where the present value is no feature."""
    if not wanted or frame.objective == Objective.CLASSIFICATION or frame.present_input is None:
        return Base()
    values = frame.inputs[frame.rows["train"], frame.present_input]
    known = values[~np.isnan(values)]
    return Base(present=frame.present_input, fallback=float(known.mean()) if len(known) else 0.0)
