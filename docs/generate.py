"""Writes the pages and files that follow from the code: `python docs/generate.py [--check]`.

`--check` writes nothing and ends with 1 where a file is not what the code says.
"""

import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from declared_nouns import declared_stub
from pictures import PICTURES
from reference_cli import cli_page, printed_help
from reference_decisions import decisions_page
from reference_errors import errors_page
from reference_pipeline import pipeline_page
from reference_python import python_page
from reference_requests import requests_page
from reference_settings import settings_page
from reference_sizing import sizing_page
from reference_states import states_page

from gridmill.cli.app import COMMANDS
from gridmill.declarations.schema_export import schema_text

ROOT = Path(__file__).parents[1]
PAGES: Mapping[str, Callable[[], str]] = {
    "docs/reference/pipeline.md": pipeline_page,
    "docs/reference/cli.md": cli_page,
    "docs/reference/errors.md": errors_page,
    "docs/adr/index.md": decisions_page,
    **PICTURES,
    "docs/reference/settings.md": settings_page,
    "docs/reference/sizing.md": sizing_page,
    "docs/reference/states.md": states_page,
    "docs/reference/python.md": python_page,
    "tests/golden/openapi.txt": requests_page,
    "src/gridmill/sdk/declared.pyi": declared_stub,
    "schema/pipeline.schema.json": schema_text,
    "src/gridmill/declarations/pipeline.schema.json": schema_text,
    "src/gridmill/cli/help/gridmill.txt": printed_help,
    **{f"src/gridmill/cli/help/{name}.txt": partial(printed_help, name) for name in COMMANDS},
}


def main(arguments: list[str]) -> int:
    """Write, or check, every page."""
    check = "--check" in arguments
    stale = [name for name, page in PAGES.items() if _read(ROOT / name) != page()]
    for name in stale:
        print(f"{name} {'is stale: run python docs/generate.py' if check else 'written'}")
        if not check:
            (ROOT / name).parent.mkdir(parents=True, exist_ok=True)
            (ROOT / name).write_text(PAGES[name](), "utf-8")
    return 1 if check and stale else 0


def _read(path: Path) -> str:
    return path.read_text("utf-8") if path.exists() else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
