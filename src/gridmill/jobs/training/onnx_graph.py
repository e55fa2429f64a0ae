"""Builds ONNX graphs of trained models node by node. Any ONNX runtime can compute these graphs, and no node
executes code.

This module writes the graphs itself instead of using a converter. The graphs need only four or five kinds of
nodes, use doubles (as scikit-learn does), and include scaling and missing values. A server that uses the
model can pass raw inputs to the graph.
"""

from collections.abc import Mapping
from dataclasses import field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from gridmill.domain.frozen import dataclass
from gridmill.jobs.training.scaling import Scaler

OPSET, TREE_OPSET, IR_VERSION = 17, 3, 8  # supported by ONNX Runtime since 2022


@dataclass(slots=True)
class GraphBuilder:
    """An ONNX graph under construction.

    Values are identified by their names. `inputs` is the name of the input of the graph, which
    `finite_inputs` reads.
    """

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)
    last: int = 0
    _known: str = ""

    def finite_inputs(self) -> str:
        """Add nodes that replace infinite inputs by missing values (NaN), as the encoding of columns does."""
        if not self._known:
            infinite = self.add("IsInf", "inputs")
            self._known = self.add("Where", infinite, self.constant(np.nan), "inputs")
        return self._known

    def name(self) -> str:
        """Return a new name for a value."""
        self.last += 1
        return f"v{self.last}"

    def constant(self, values: npt.ArrayLike, kind: npt.DTypeLike = np.float64) -> str:
        """Add a constant tensor."""
        name = self.name()
        self.constants.append(numpy_helper.from_array(np.array(values, kind, order="C"), name))
        return name

    def add(self, kind: str, *inputs: str, domain: str = "", **attributes: Any) -> str:  # noqa: ANN401
        """Add a node with a single output."""
        return self.add_many(kind, *inputs, outputs=1, domain=domain, **attributes)[0]

    def add_many(
        self,
        kind: str,
        *inputs: str,
        outputs: int,
        domain: str = "",
        **attributes: Any,  # noqa: ANN401
    ) -> tuple[str, ...]:
        """Add a node with several outputs."""
        names = tuple(self.name() for _ in range(outputs))
        self.nodes.append(helper.make_node(kind, list(inputs), list(names), domain=domain, **attributes))
        return names

    def doubles(self, value: str) -> str:
        """Add a node that converts the value to doubles."""
        return self.add("Cast", value, to=TensorProto.DOUBLE)

    def floats(self, value: str) -> str:
        """Add a node that converts the value to 32-bit floats."""
        return self.add("Cast", value, to=TensorProto.FLOAT)

    def scaled(self, value: str, scaler: Scaler) -> str:
        """Add nodes that compute `Scaler.apply` along the last axis."""
        spread, missing = scaler.spread, self.add("IsNaN", value)
        if spread.is_scaled:
            value = self.add("Mul", value, self.constant(spread.scale))
        moved = self.add("Sub", value, self.constant(spread.mean))
        scaled = self.add("Div", moved, self.constant(spread.deviation))
        filled = self.add("Where", missing, self.constant(0.0), scaled)
        filled = self.add("Clip", filled, self.constant(-scaler.limit), self.constant(scaler.limit))
        if not scaler.flagged:
            return filled
        flags = self.add("Gather", missing, self.constant(scaler.flagged, np.int64), axis=-1)
        return self.add("Concat", filled, self.doubles(flags), axis=-1)

    def flat(self, value: str) -> str:
        """Add a node that converts the shape [rows, 1] to [rows]."""
        return self.add("Squeeze", value, self.constant([1], np.int64))

    def probabilities(self, scores: str, classes: int) -> str:
        """Add nodes that compute probabilities [rows, classes] from a score for each class, or for two
        classes from the log-odds of the second class."""
        if classes == 2:
            first = self.add("Mul", scores, self.constant(0.0))
            scores = self.add("Concat", first, scores, axis=1)
        return self.add("Softmax", scores, axis=1)

    def finish(self, output: str, width: int, sequence: int | None = None, outputs: int = 0) -> bytes:
        """Return the graph as bytes. The graph takes doubles [rows, width] or [rows, sequence, width], and
        returns doubles [rows] or [rows, outputs]."""
        shape: list[str | int | None] = ["rows", width] if sequence is None else ["rows", sequence, width]
        self.nodes.append(helper.make_node("Cast", [output], ["output"], to=TensorProto.DOUBLE))
        graph = helper.make_graph(
            self.nodes,
            "model",
            [helper.make_tensor_value_info("inputs", TensorProto.DOUBLE, shape)],
            [
                helper.make_tensor_value_info(
                    "output", TensorProto.DOUBLE, ["rows", outputs] if outputs else ["rows"]
                )
            ],
            initializer=self.constants,
        )
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("ai.onnx.ml", TREE_OPSET)]
        model = helper.make_model(
            graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="gridmill"
        )
        data: bytes = model.SerializeToString()
        return data


def with_metadata(graph: bytes, facts: Mapping[str, str]) -> bytes:
    """Return the graph with the given texts in its field `metadata_props`.

    The facts are appended as a second protobuf message, because two concatenated messages are read as a
    single message.
    """
    entries = [onnx.StringStringEntryProto(key=key, value=value) for key, value in facts.items()]
    added: bytes = onnx.ModelProto(metadata_props=entries).SerializeToString()
    return graph + added
