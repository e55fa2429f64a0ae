"""Forecasting the change from the present value: a model that only learns what differs from the naive one."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gridmill.jobs.features import Floats
from gridmill.jobs.training.frame import Frame
from gridmill.jobs.training.graph import Graph
from gridmill.model.training import Objective


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """What a model's numbers are added to: per label an input, and what stands for it where it is missing.

    A label without such an input has None and 0; no labels at all mean that nothing is added.
    """

    presents: tuple[int | None, ...] = ()
    fallback: tuple[float, ...] = ()

    @property
    def used(self) -> bool:
        """Whether anything is added."""
        return any(present is not None for present in self.presents)

    @property
    def _picked(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Per label the number of its input, and whether it has none."""
        picked = np.array([present or 0 for present in self.presents], np.int64)
        return picked, np.array([present is None for present in self.presents])

    def values(self, inputs: Floats) -> Floats:
        """[rows], or [rows, labels] of several, from inputs [rows, inputs]."""
        if not self.used:
            return np.zeros((len(inputs), len(self.presents)) if len(self.presents) > 1 else len(inputs))
        picked, none = self._picked
        present = inputs[:, picked]
        found: Floats = np.where(np.isnan(present) | none, np.array(self.fallback), present)
        return found if len(self.presents) > 1 else found[:, 0]

    def add_to(self, graph: Graph, value: str, newest: str) -> str:
        """The sum [rows] or [rows, labels] in a graph; `newest` are the basis rows' inputs [rows, inputs]."""
        if not self.used:
            return value
        known = self.values_in(graph, newest)
        return graph.add("Add", value, known if len(self.presents) > 1 else graph.flat(known))

    def values_in(self, graph: Graph, newest: str) -> str:
        """What is added, [rows, labels], in a graph."""
        picked, none = self._picked
        present = graph.add("Gather", newest, graph.constant(picked, np.int64), axis=1)
        missing = graph.add("Or", graph.add("IsNaN", present), graph.constant(none, np.bool_))
        return graph.add("Where", missing, graph.constant(self.fallback), present)


def fit_base(frame: Frame, wanted: bool) -> Base:
    """The base: none when not wanted, for classes, or where no label's present value is a feature."""
    presents = frame.present_inputs
    if not wanted or frame.objective == Objective.CLASSIFICATION:
        return Base(presents=(None,) * len(presents), fallback=(0.0,) * len(presents))
    return Base(presents=presents, fallback=tuple(_mean(frame, present) for present in presents))


def _mean(frame: Frame, present: int | None) -> float:
    if present is None:
        return 0.0
    values = frame.inputs[frame.rows["train"], present]
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else 0.0
