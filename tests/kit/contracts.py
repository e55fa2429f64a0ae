"""The import contracts of the repository, and the imports that they are checked on."""

import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import grimp
from importlinter import configuration
from importlinter.application import use_cases
from importlinter.domain.contract import Contract, registry

_NAMED = re.compile(r"[\"'](gridmill\.[\w.]+)(?::\w+)?[\"']")
ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"
Import = tuple[str, str]
"""The dotted names of the module that imports, and of the module that is imported."""


@dataclass(frozen=True)
class Contracts:
    """The contracts by their id, and the imports of the source as it is."""

    by_id: Mapping[str, Contract]
    options: Mapping[str, Mapping[str, Any]]
    graph: grimp.ImportGraph

    def holds(self, contract: str, *added: Import) -> bool:
        """Whether the contract holds when the source has these imports too."""
        graph = deepcopy(self.graph)
        for importer, imported in added:
            _add_module(graph, importer)
            _add_module(graph, imported)
            graph.add_import(importer=importer, imported=imported, line_number=1, line_contents="")
        return self.by_id[contract].check(graph, verbose=False).kept

    def listed(self, contract: str, option: str) -> list[str]:
        """The lines of an option of a contract."""
        lines = self.options[contract].get(option, ())
        return [line for line in lines if line]

    @cached_property
    def modules(self) -> frozenset[str]:
        """The dotted names of all own modules."""
        return frozenset(name for name in self.graph.modules if name.partition(".")[0] == "gridmill")


def load_contracts(cache: Path) -> Contracts:
    """The contracts of .importlinter on the source of this repository; `cache` speeds up the next call."""
    configuration.configure()
    options = use_cases.read_user_options(str(ROOT / ".importlinter"))
    use_cases._register_contract_types(options)
    graph = grimp.build_graph(
        "gridmill", include_external_packages=True, exclude_type_checking_imports=True, cache_dir=str(cache)
    )
    made = {
        one["id"]: registry.get_contract_class(one["type"])(
            name=one["name"], session_options=options.session_options, contract_options=one
        )
        for one in options.contracts_options
    }
    return Contracts(made, {one["id"]: one for one in options.contracts_options}, graph)


def all_imports(contracts: Contracts, cache: Path) -> Mapping[str, frozenset[str]]:
    """By own module, the own modules that it imports, in `if TYPE_CHECKING` and by names in strings too.
    Left out is the package `gridmill` itself, which names what is public."""
    graph = grimp.build_graph("gridmill", cache_dir=str(cache))
    for importer, imported in named_modules(contracts):
        graph.add_import(importer=importer, imported=imported)
    return {
        module: frozenset(graph.find_modules_directly_imported_by(module)) - {"gridmill"}
        for module in graph.modules - {"gridmill"}
    }


def source_files() -> Iterator[tuple[str, Path]]:
    """Each own module's dotted name, and its file."""
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def named_modules(contracts: Contracts) -> Mapping[Import, int]:
    """Own modules that the source names in strings ("gridmill.a.b" or "gridmill.a.b:name"), each with the
    module that names it and the line: what `import_module` and tables load, and no import shows."""
    found: dict[Import, int] = {}
    for module, path in source_files():
        text = path.read_text()
        for match in _NAMED.finditer(text):
            if match[1] in contracts.modules and match[1] != module:
                found.setdefault((module, match[1]), text.count("\n", 0, match.start()) + 1)
    return found


def _add_module(graph: grimp.ImportGraph, name: str) -> None:
    if name not in graph.modules:
        graph.add_module(name, is_squashed=name.partition(".")[0] != "gridmill")
