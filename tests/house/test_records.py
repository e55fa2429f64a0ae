"""All classes of fields in src use one decorator, in one of three forms."""

import ast
from collections.abc import Iterator, Sequence

import pytest

from tests.kit.contracts import source_files

DECORATOR = "gridmill.domain.frozen"
BELOW = {DECORATOR, "gridmill.errors"}
"""These modules are below the decorator, or are it: they take that of the standard library."""

RECORD = {"frozen", "slots", "kw_only"}
CACHED = RECORD - {"slots"}
"""A `cached_property` keeps its value in the object's `__dict__`, which slots leave out."""

STATE = ({"slots"}, {"slots", "kw_only"})
"""What changes in place."""


def other_forms(text: str) -> Iterator[str]:
    """The lines of a module's source that make a class of fields in another way, each as "line: code"."""
    for node in ast.walk(ast.parse(text)):
        for wrong in _wrong(node):
            yield f"{wrong.lineno}: {ast.unparse(wrong)}"


def _wrong(node: ast.AST) -> Sequence[ast.stmt | ast.expr]:
    if isinstance(node, ast.ImportFrom) and _imports_another(node):
        return [node]
    if isinstance(node, ast.Attribute) and node.attr in ("dataclass", "make_dataclass"):
        return [node]
    if not isinstance(node, ast.ClassDef):
        return []
    return [one for one in node.decorator_list if _is_dataclass(one) and not _is_a_form(one, node)]


def _imports_another(node: ast.ImportFrom) -> bool:
    names = {alias.name for alias in node.names}
    if node.module == "dataclasses":
        return bool(names & {"dataclass", "make_dataclass", "*"})
    return "dataclass" in names and node.module != DECORATOR


def _is_dataclass(decorator: ast.expr) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return isinstance(called, ast.Name) and called.id == "dataclass"


def _is_a_form(decorator: ast.expr, made: ast.ClassDef) -> bool:
    if not isinstance(decorator, ast.Call) or decorator.args:
        return False
    if not all(isinstance(one.value, ast.Constant) and one.value.value is True for one in decorator.keywords):
        return False
    given = {one.arg for one in decorator.keywords}
    return given in STATE or given == (CACHED if _caches(made) else RECORD)


def _caches(made: ast.ClassDef) -> bool:
    functions = [one for one in made.body if isinstance(one, ast.FunctionDef)]
    return any("cached_property" in ast.unparse(name) for one in functions for name in one.decorator_list)


def test_all_classes_of_fields_have_one_of_the_forms():
    texts = {module: path.read_text() for module, path in source_files() if module not in BELOW}
    assert sum(f"from {DECORATOR} import" in text for text in texts.values()) > 100
    found = {module: lines for module, text in texts.items() if (lines := list(other_forms(text)))}
    assert found == {}


def class_with(decorator: str, method: str = "def f(self): ...") -> str:
    return f"{decorator}\nclass Found:\n    a: int\n    {method}"


@pytest.mark.parametrize(
    "text",
    [
        "from dataclasses import dataclass",
        "from dataclasses import field, dataclass as record",
        "from dataclasses import *",
        "from gridmill.domain.job import dataclass",
        "import dataclasses\n" + class_with("@dataclasses.dataclass(frozen=True)"),
        class_with("@dataclass"),
        class_with("@dataclass()"),
        class_with("@dataclass(frozen=True)"),
        class_with("@dataclass(frozen=True, slots=True)"),
        class_with("@dataclass(frozen=False, slots=True, kw_only=True)"),
        class_with("@dataclass(frozen=True, kw_only=True)"),
        class_with(
            "@dataclass(frozen=True, slots=True, kw_only=True)", "@cached_property\n    def f(self): ..."
        ),
    ],
)
def test_another_form_is_found(text: str):
    assert len(list(other_forms(text))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "from dataclasses import field, replace",
        f"from {DECORATOR} import dataclass",
        class_with("@dataclass(frozen=True, slots=True, kw_only=True)"),
        class_with(
            "@dataclass(frozen=True, kw_only=True)", "@functools.cached_property\n    def f(self): ..."
        ),
        class_with("@dataclass(slots=True)"),
        class_with("@dataclass(slots=True, kw_only=True)"),
        class_with("@final"),
    ],
)
def test_the_forms_are_left_alone(text: str):
    assert list(other_forms(text)) == []
