"""The worked example of CONTRIBUTING.md: its blocks add a noun to a copy of the package, and the noun works.

Each block is headed by its file and, where the file exists, by the line before or after which it goes.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import eventually
from tests.kit.markdown import ROOT
from tests.kit.ports import free_port

pytestmark = pytest.mark.e2e

MOST_FILES = 9
"""A new noun with its verbs must not take more."""
PAGE = ROOT / "CONTRIBUTING.md"
CHECKED = (
    "docs",
    "schema",
    "tests",
    "bench",
    "examples",
    "pyproject.toml",
    ".importlinter",
    "CONTRIBUTING.md",
)
TESTS = ("unit/ports/test_usecases.py", "unit/rpc/test_usecases_travel.py", "unit/cli/test_cli_lists.py")
_SECTION = re.compile(r"^## Add a noun.*?(?=^## )", re.M | re.S)
_BLOCK = re.compile(
    r"^(?:\*\*(?P<new>[\w./]+)\*\*, a new file|"
    r"`(?P<old>[\w./]+)`, (?P<where>before|after) `(?P<line>[^\n]*)`):\n\n"
    r"```\w+\n(?P<text>.*?)^```$",
    re.M | re.S,
)
HELLO = "meet at nine"
CLIENT = """
import gridmill
with gridmill.connect() as client:
    client.add_note("client", "by Python")
    assert "client" in [note.name for note in client.list_notes()]
    assert client.show("note", "client").text == "by Python"
    client.remove_note("client")
    assert "client" not in [note.name for note in client.list_notes()]
"""


@dataclass(frozen=True)
class Step:
    """`text` is the whole of a new file, or is inserted before or after the only line that is `line`."""

    file: str
    where: str | None
    line: str
    text: str

    def apply(self, folder: Path) -> None:
        path = folder / self.file
        if self.where is None:
            assert not path.exists(), self.file
            path.write_text(self.text)
            return
        lines = path.read_text().splitlines(keepends=True)
        found = [number for number, line in enumerate(lines) if line.strip() == self.line.strip()]
        assert len(found) == 1, f"{self.file} has {len(found)} lines {self.line!r}: correct CONTRIBUTING.md"
        lines.insert(found[0] + (self.where == "after"), self.text)
        path.write_text("".join(lines))


def steps() -> list[Step]:
    section = _SECTION.search(PAGE.read_text("utf-8"))
    assert section, "CONTRIBUTING.md has no section `Add a noun`"
    found = [
        Step(one["new"] or one["old"], one["where"], one["line"] or "", one["text"])
        for one in _BLOCK.finditer(section[0])
    ]
    assert len(found) == section[0].count("\n```") // 2, "a block is not headed by its file"
    return found


@dataclass(frozen=True)
class Copy:
    """A copy of the repository with the noun in it, and a home for its control nodes."""

    folder: Path
    home: Path

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(self.folder / "src"), "GRIDMILL_HOME": str(self.home)}

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        command, folder = [sys.executable, *words], self.folder
        return subprocess.run(
            command, cwd=folder, env=self.environment, capture_output=True, text=True, check=False
        )

    def python(self, *words: str) -> str:
        done = self.run(*words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def gridmill(self, *words: str) -> str:
        return self.python("-m", "gridmill", *words)

    def is_up(self) -> bool:
        return self.run("-m", "gridmill", "show", "control").returncode == 0


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    folder = tmp_path_factory.mktemp("copy")
    shutil.copytree(ROOT / "src", folder / "src")  # with the compiled modules: their times are kept
    for step in steps():
        step.apply(folder)
    made = Copy(folder, tmp_path_factory.mktemp("home") / "g")
    assert "added" in made.gridmill("add", "note", "shift", "--text", HELLO)
    return made


@pytest.fixture
def address(copy: Copy) -> Iterator[str]:
    """Of a control node with a REST API in a process of its own."""
    address = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "gridmill", "up", "--listen", address]
    process = subprocess.Popen(
        command, env=copy.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        assert eventually(copy.is_up)
        yield address
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


def test_a_noun_takes_no_more_files_than_it_may() -> None:
    files = {step.file for step in steps()}
    assert len(files) <= MOST_FILES, sorted(files)


def test_the_commands_know_it_and_every_process_finds_it_again(copy: Copy) -> None:
    copy.gridmill("add", "note", "later", "--text", "x")
    assert HELLO in copy.gridmill("list", "notes")
    assert json.loads(copy.gridmill("show", "note", "shift", "--json")) == {"name": "shift", "text": HELLO}
    assert HELLO in copy.gridmill("show", "note", "shift")
    assert "removed" in copy.gridmill("remove", "note", "later")
    assert [one["name"] for one in json.loads(copy.gridmill("list", "notes", "--json"))] == ["shift"]
    refused = copy.run("-m", "gridmill", "remove", "note", "later")
    assert refused.returncode != 0
    assert "there is no note 'later'" in refused.stderr


def test_the_rest_api_and_the_python_client_know_it(copy: Copy, address: str) -> None:
    token = json.loads((copy.home / "control.json").read_text())["token"]
    headers = {"Authorization": f"Bearer {token}"}
    with httpx.Client(base_url=f"http://{address}/v1", headers=headers, timeout=60) as rest:
        note: dict[str, Any] = {"name": "rest", "text": "by HTTP"}
        assert rest.put("/notes/rest", json=note).json() == note
        assert note in rest.get("/notes").json()["items"]
        assert rest.get("/notes/rest").json() == note
        assert HELLO in rest.get("/notes/shift").text, "what a command added is there"
        copy.python("-c", CLIENT)
        assert rest.delete("/notes/rest").status_code == 204
        assert rest.get("/notes/rest").status_code == 404


@pytest.mark.long
def test_the_copy_passes_the_checks(copy: Copy) -> None:
    """Also the generated pages are made from it."""
    for name in CHECKED:
        shutil.copytree(ROOT / name, copy.folder / name) if (ROOT / name).is_dir() else shutil.copy(
            ROOT / name, copy.folder
        )
    copy.python("docs/generate.py")
    copy.python("-m", "ruff", "format", "--check", "src", "docs")
    copy.python("-m", "ruff", "check", "src", "docs")
    copy.python("-m", "mypy", "src")
    copy.python("-c", "from importlinter.cli import lint_imports_command; lint_imports_command()")
    own = ("-p", "no:cacheprovider", "--basetemp", str(copy.folder / "tests" / "basetemp"))
    copy.python("-m", "pytest", *own, *(f"tests/{name}" for name in TESTS))
