"""Nouns and the planner read no clock, randomness, environment or file: what imports do not show, the syntax
tree does. Time and new ids are arguments."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.contracts import source_files

PURE = ("gridmill.domain", "gridmill.scheduler")
BUILT_IN = {"open", "input", "print", "eval", "__import__", "breakpoint", "hash", "id"}
"""Built-in functions that read or write outside, or whose result differs between processes."""

CLOCK = {"now", "utcnow", "today", "time", "time_ns", "monotonic", "perf_counter"}
"""Called on a module or a class (`datetime.now()`, `time.time()`), whatever it was imported as."""

CLOCKS = {"datetime", "date", "time", "dt", "clock"}
SYSTEM = {
    *("getenv", "getcwd", "urandom", "uuid1", "uuid4", "getpid", "gethostname", "getrandbits"),
    *("cwd", "home", "expanduser", "resolve", "absolute", "abspath", "realpath", "exists", "lexists"),
    *("is_file", "is_dir", "is_symlink", "stat", "lstat", "iterdir", "rglob", "read_text", "read_bytes"),
    *("write_text", "write_bytes", "mkdir", "unlink", "rmdir", "touch", "rename", "chmod", "symlink_to"),
    *("isfile", "isdir", "listdir", "scandir", "getmtime", "getsize", "popen", "system", "Popen"),
}
"""Methods of paths and functions of the system's modules that read or change the machine."""

LOADED = {"zoneinfo"}
"""What these packages load by name on first use: the rules of time zones."""


def impure(text: str) -> Iterator[str]:
    """What a module's source does that depends on the machine, each as "line: code"."""
    for node in ast.walk(ast.parse(text)):
        called = isinstance(node, ast.Call) and _is_impure_call(node)
        if called or (isinstance(node, ast.Attribute) and node.attr == "environ"):
            yield f"{node.lineno}: {ast.unparse(node)}"


def _is_impure_call(call: ast.Call) -> bool:
    function = call.func
    if isinstance(function, ast.Name):
        return function.id in BUILT_IN or (function.id == "import_module" and not _is_loaded(call))
    if not isinstance(function, ast.Attribute):
        return False
    owner = ast.unparse(function.value).rpartition(".")[2]
    if function.attr in CLOCK and owner in CLOCKS:
        return True
    if function.attr in SYSTEM:
        return True
    if function.attr in ("fromtimestamp", "astimezone"):  # without a zone they read that of the machine
        return len(call.args) + len(call.keywords) < (2 if function.attr == "fromtimestamp" else 1)
    return function.attr == "import_module" or (function.attr == "open" and owner != "self")


def _is_loaded(call: ast.Call) -> bool:
    name = call.args[0]
    return isinstance(name, ast.Constant) and name.value in LOADED


def files() -> list[tuple[str, Path]]:
    return [(module, path) for module, path in source_files() if module.startswith(PURE)]


def test_nouns_and_the_planner_do_not_depend_on_the_machine():
    assert {module.split(".")[1] for module, _ in files()} == {name.split(".")[1] for name in PURE}
    found = {module: lines for module, path in files() if (lines := list(impure(path.read_text())))}
    assert found == {}


@pytest.mark.parametrize(
    "line",
    [
        "open('x')",
        "datetime.now()",
        "datetime.datetime.now(UTC)",
        "date.today()",
        "time.time()",
        "dt.utcnow()",
        "os.environ['HOME']",
        "os.getenv('HOME')",
        "Path('x').exists()",
        "path.read_text()",
        "path.open()",
        "Path.home()",
        "Path(folder).resolve()",
        "print('x')",
        "hash(name)",
        "uuid.uuid4()",
        "import_module('random')",
        "importlib.import_module(name)",
        "datetime.fromtimestamp(1.0)",
        "moment.astimezone()",
    ],
)
def test_what_depends_on_the_machine_is_found(line: str):
    assert len(list(impure(line))) == 1


@pytest.mark.parametrize(
    "line",
    [
        "datetime.fromtimestamp(1.0, zone)",
        "moment.astimezone(zone)",
        "import_module('zoneinfo')",
        "PurePosixPath(name).name",
        "ledger.now",
        "self.open()",
        "usage.read_bytes > 0",
    ],
)
def test_what_does_not_depend_on_the_machine_is_left_alone(line: str):
    assert list(impure(line)) == []
