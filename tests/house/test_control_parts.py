"""Functions of the control node take the parts of its state that they need, not all of it."""

import ast
from pathlib import Path

from tests.kit.contracts import SOURCE

CONTROL = SOURCE / "gridmill" / "control"
WHOLE = {
    "control.node:__init__",
    "usecases.views:job_views",
    "ticks.advance:_advanced",
    "ticks.advance:_ready",
    "ticks.advance:advance",
    "ticks.backfills:keep_backfills",
    "ticks.dispatch:dispatch",
    "ticks.observe:observe",
    "ticks.schedules:keep_schedules",
}
"""Functions that still get all of it: those that begin runs, and the outer functions of ticks."""


def takes_all(path: Path) -> set[str]:
    """The functions of a module with an argument of the class Control."""
    functions = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef))
    return {
        f"{path.parent.name}.{path.stem}:{function.name}"
        for function in functions
        for argument in (*function.args.args, *function.args.kwonlyargs)
        if isinstance(argument.annotation, ast.Name) and argument.annotation.id == "Control"
    }


def test_no_other_function_takes_the_whole_state():
    found = {name for path in CONTROL.rglob("*.py") for name in takes_all(path)}
    assert found - WHOLE == set(), "give it the parts of control/state.py that it needs"
    assert WHOLE - found == set(), "take it off the list"


def test_a_function_that_takes_it_is_found(tmp_path: Path):
    module = tmp_path / "bad.py"
    module.write_text("def bad(control: Control) -> None: ...\ndef good(ledger: Ledger) -> None: ...\n")
    assert takes_all(module) == {f"{tmp_path.name}.bad:bad"}
