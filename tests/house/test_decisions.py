"""A tick reads, decides, commits and acts. Its decisions are the functions whose names begin with `decide`:
they get values and return values, so that a test of a decision needs no control node."""

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

from tests.house.test_purity import impure
from tests.kit.contracts import SOURCE

CONTROL = "gridmill.control"
TICKS = sorted((SOURCE / "gridmill" / "control" / "ticks").glob("[!_]*.py"))
PURE = ("gridmill.domain", "gridmill.scheduler", "gridmill.errors", "gridmill.codec")
"""The packages whose functions a decision may call. Their own purity is tested in `test_purity`."""

OUTSIDE = {
    *("threading", "time", "os", "sys", "random", "secrets", "socket", "subprocess", "pathlib", "datetime"),
    *("uuid", "logging", "concurrent", "contextlib", "hmac", "io", "tempfile", "shutil"),
}
"""Modules of the standard library that a decision does not use."""


@cache
def tree(module: str) -> ast.Module:
    """The syntax tree of one of our modules."""
    path = SOURCE.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text())


def imports(body: ast.Module) -> Mapping[str, tuple[str, str]]:
    """By name in a module, the module and the name that it was imported from."""
    return {
        alias.asname or alias.name: (node.module or "", alias.name)
        for node in ast.walk(body)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    } | {
        alias.asname or alias.name.partition(".")[0]: (alias.name, "")
        for node in ast.walk(body)
        if isinstance(node, ast.Import)
        for alias in node.names
    }


def defined(body: ast.Module) -> Mapping[str, ast.stmt]:
    """The functions and classes of a module."""
    return {node.name: node for node in body.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}


@cache
def is_state(module: str, name: str) -> bool:
    """Whether it is a part of the control node's state or a port: what can read, wait or change something."""
    if module in (f"{CONTROL}.state", f"{CONTROL}.ledger", f"{CONTROL}.background"):
        return isinstance(defined(tree(module)).get(name), ast.ClassDef)
    if not module.startswith("gridmill.ports"):
        return False
    node = defined(tree(module)).get(name)
    return isinstance(node, ast.FunctionDef) or (
        isinstance(node, ast.ClassDef) and "Protocol" in map(ast.unparse, node.bases)
    )


def faults(body: ast.Module, function: ast.FunctionDef, seen: set[ast.FunctionDef]) -> Iterator[str]:
    """What a decision has that it must not have, with the functions of the control node that it calls."""
    if function in seen:
        return
    seen.add(function)
    bound, here = imports(body), defined(body)
    for line in impure(ast.unparse(function)):
        yield f"{function.name}: {line}"
    for argument in (*function.args.args, *function.args.kwonlyargs, *function.args.posonlyargs):
        if argument.annotation is None:
            yield f"{function.name}: {argument.arg} has no type"
    names = {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
    for name in sorted(names):
        if isinstance(called := here.get(name), ast.FunctionDef):
            yield from faults(body, called, seen)
        if name in bound:
            yield from _imported(function.name, *bound[name], seen)


def _imported(function: str, module: str, name: str, seen: set[ast.FunctionDef]) -> Iterator[str]:
    top = module.partition(".")[0]
    if top == "gridmill" and not module.startswith(PURE):
        if not module.startswith((CONTROL, "gridmill.ports")) or is_state(module, name):
            yield f"{function}: {module}.{name}"
        elif isinstance(called := defined(tree(module)).get(name), ast.FunctionDef):
            yield from faults(tree(module), called, seen)
    elif top in OUTSIDE:
        yield f"{function}: {module}.{name}"


def decisions(body: ast.Module) -> list[ast.FunctionDef]:
    """The decisions that a module defines."""
    return [
        node for node in body.body if isinstance(node, ast.FunctionDef) and node.name.startswith("decide")
    ]


@pytest.mark.parametrize("path", TICKS, ids=lambda path: path.stem)
def test_a_tick_decides_with_values_and_knows_no_other_tick(path: Path):
    body = ast.parse(path.read_text())
    bound = imports(body)
    own, borrowed = decisions(body), [name for name in bound if name.startswith("decide")]
    assert own or borrowed, "name the function that decides `decide_...`, and give it values"
    assert all(bound[name][0].startswith(PURE) for name in borrowed)
    assert [fault for one in own for fault in faults(body, one, set())] == []
    assert [module for module, _ in bound.values() if module.startswith(f"{CONTROL}.ticks")] == []


BEFORE = """
from gridmill.control.ledger import Ledger, Transaction
from gridmill.control.state import Control, BringUps
from gridmill.control.steps.gangs import send_to_pod
from gridmill.control.steps.pod_events import with_pod
from gridmill.domain.run import Attempt
from gridmill.domain.deployment import Deployment
from gridmill.ports.clock import Clock
from gridmill.ports.site import PodReport, SitePort
from threading import Lock
def read(ledger: Ledger) -> int: ...
def pure(attempt: Attempt) -> bool: ...
"""


@pytest.mark.parametrize(
    "text",
    [
        "def decide(control: Control) -> None: ...",
        "def decide(ledger: Ledger, now: float) -> None: ...",
        "def decide(now: float, *, transaction: Transaction) -> None: ...",
        "def decide(ups: BringUps) -> None: ...",
        "def decide(clock: Clock) -> None: ...",
        "def decide(site: SitePort | None) -> None: ...",
        "def decide(ledger) -> None: ...",
        "def decide(now: float) -> int: return read(now)",
        "def decide(now: float) -> float: return time.time()",
        "def decide(now: float) -> object: return Lock()",
        "def decide(now: float) -> object: return send_to_pod(now)",
    ],
)
def test_a_decision_that_is_not_pure_is_found(text: str):
    body = ast.parse(BEFORE + text)
    assert [fault for one in decisions(body) for fault in faults(body, one, set())]


@pytest.mark.parametrize(
    "text",
    [
        "def decide(attempt: Attempt, now: float) -> bool: return pure(attempt)",
        "def decide(report: PodReport) -> str: return report.message",
        "def decide(deployment: Deployment) -> Deployment: return with_pod(deployment, deployment.pods[0])",
    ],
)
def test_a_pure_decision_is_left_alone(text: str):
    body = ast.parse(BEFORE + text)
    assert [fault for one in decisions(body) for fault in faults(body, one, set())] == []
