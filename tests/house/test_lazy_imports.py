"""Imports inside functions load a heavy library when it is used: nothing else may be imported late.

An own module is imported late only where it loads a library that its importer does not load at start.
"""

import ast
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache

import pytest

from tests.kit.contracts import source_files

FACTORIES = {"gridmill.bootstrap.host", "gridmill.__main__"}
"""Each function makes one thing, which most commands do not need, and none of them `gridmill --help`."""

HEAVY = {"http", "ssl"}
"""Packages of the standard library that take 10 ms to import: OpenSSL comes with them."""

BY_STRING = {
    ("gridmill.jobs.main", "gridmill.jobs.arrow"),
    ("gridmill.jobs.main", "gridmill.jobs.inspect_versions"),
}
"""Named in strings, so that pods, which call `gridmill.jobs.main`, do not depend on PyArrow."""


_LATE = re.compile(r"^\s+(from|import) |import_module\(", re.MULTILINE)
_DEFINITION = re.compile(r"^(?:def|class|async|@)", re.MULTILINE)


@dataclass(frozen=True)
class Late:
    """An import inside a function, or a call of `import_module`."""

    imported: str
    line: int
    by_string: bool = False


@cache
def trees() -> Mapping[str, ast.Module]:
    """By module, its source; of a module without late imports only what comes before the first definition."""
    texts = {module: path.read_text() for module, path in source_files()}
    return {
        module: ast.parse(text if _LATE.search(text) else _DEFINITION.split(text, maxsplit=1)[0])
        for module, text in texts.items()
    }


def imports(tree: ast.AST, modules: Iterable[str], *, late: bool = False) -> Iterator[Late | str]:
    """What a module imports: names of what it imports at start, and a Late for all else."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            for name in _names(node, modules):
                yield Late(name, node.lineno) if late else name
        elif isinstance(node, ast.Call) and (name := _loaded(node)):
            yield Late(name, node.lineno, by_string=True)
        yield from imports(node, modules, late=late or isinstance(node, ast.FunctionDef | ast.Lambda))


def _names(node: ast.Import | ast.ImportFrom, modules: Iterable[str]) -> list[str]:
    if isinstance(node, ast.Import):
        return [one.name for one in node.names]
    inside = [f"{node.module}.{one.name}" for one in node.names]
    return [name if name in modules else str(node.module) for name in inside]


def _loaded(call: ast.Call) -> str:
    """The module that `import_module("NAME")` loads; empty for other calls."""
    function = call.func
    name = function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
    named = name == "import_module" and isinstance(call.args[0], ast.Constant)
    return str(call.args[0].value) if named else ""


@cache
def found() -> Mapping[str, tuple[Late | str, ...]]:
    return {module: tuple(imports(tree, trees())) for module, tree in trees().items()}


@cache
def libraries(module: str) -> frozenset[str]:
    """The packages that are loaded when the module is imported, those of the standard library included."""
    seen: set[str] = set()
    waiting = [module]
    while waiting:
        one = waiting.pop()
        if one not in seen:
            seen.add(one)
            parents = (".".join(one.split(".")[:count]) for count in range(2, one.count(".") + 2))
            for parent in parents:
                waiting += [name for name in found().get(parent, ()) if isinstance(name, str)]
    return frozenset(name.partition(".")[0] for name in seen) - {"gridmill"}


def is_heavy(library: str) -> bool:
    return library in HEAVY or library not in sys.stdlib_module_names


def late_imports() -> list[tuple[str, Late]]:
    return [
        (module, one)
        for module, names in found().items()
        for one in names
        if isinstance(one, Late) and one.imported.partition(".")[0] == "gridmill"
    ]


def test_each_late_import_loads_a_heavy_library():
    assert len(late_imports()) > 20, "imports are not found any more"
    light = [
        f"{module}:{one.line}: {one.imported}"
        for module, one in late_imports()
        if module not in FACTORIES and not any(map(is_heavy, libraries(one.imported) - libraries(module)))
    ]
    assert light == [], "import these at the top of the module"


def test_own_modules_are_imported_by_imports():
    assert {(module, one.imported) for module, one in late_imports() if one.by_string} == BY_STRING


@pytest.mark.parametrize(
    ("line", "late"),
    [
        ("def f():\n    from gridmill.domain import run", Late("gridmill.domain.run", 2)),
        ("def f():\n    import gridmill.domain.run", Late("gridmill.domain.run", 2)),
        ("class A:\n    def f(self):\n        import numpy", Late("numpy", 3)),
        ("a = import_module('gridmill.a').b()", Late("gridmill.a", 1, by_string=True)),
        ("from gridmill.domain.run import Run", "gridmill.domain.run"),
        ("try:\n    import numpy\nexcept ImportError:\n    pass", "numpy"),
    ],
)
def test_imports_are_found(line: str, late: Late | str):
    assert list(imports(ast.parse(line), {"gridmill.domain.run"})) == [late]
