"""Functions of the control node take the parts of its state that they need, not all of it."""

import ast
import re
from pathlib import Path

from tests.kit.contracts import SOURCE

CONTROL = SOURCE / "gridmill" / "control"
MOST = 8
"""More functions do not need all of it: a new tick may."""

WHOLE = {
    "control.node:__init__",
    "usecases.views:job_views",
    "ticks.advance:advance",
    "ticks.backfills:keep_backfills",
    "ticks.dispatch:dispatch",
    "ticks.observe:observe",
    "ticks.rent:rent",
    "ticks.schedules:keep_schedules",
}
"""Functions that still get all of it: the node itself, the outer functions of ticks, and one view."""


def takes_all(path: Path) -> set[str]:
    """The functions of a module with an argument of the class Control, and the classes with such a field."""
    tree = ast.parse(path.read_text())
    found = {
        (node.name, argument.annotation)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
    } | {
        (node.name, field.annotation)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for field in node.body
        if isinstance(field, ast.AnnAssign)
    }
    return {
        f"{path.parent.name}.{path.stem}:{name}"
        for name, annotation in found
        if annotation is not None and "Control" in re.findall(r"\w+", ast.unparse(annotation))
    }


def test_no_other_function_takes_the_whole_state():
    found = {name for path in CONTROL.rglob("*.py") for name in takes_all(path)}
    assert found - WHOLE == set(), "give it the parts of control/state.py that it needs"
    assert WHOLE - found == set(), "take it off the list"
    assert len(WHOLE) <= MOST


def test_a_function_that_takes_it_is_found(tmp_path: Path):
    module = tmp_path / "bad.py"
    module.write_text(
        "def bad(control: Control) -> None: ...\n"
        "def worse(*, control: 'Control | None' = None) -> None: ...\n"
        "class Worst:\n    control: Control\n"
        "def good(ledger: Ledger, limits: ControlTimeouts) -> None: ...\n"
    )
    names = ("bad", "worse", "Worst")
    assert takes_all(module) == {f"{tmp_path.name}.bad:{name}" for name in names}
