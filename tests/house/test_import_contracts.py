"""Each import contract, broken on purpose: a contract that cannot fail holds nothing."""

import configparser
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINT = Path(sys.executable).parent / "lint-imports"

VIOLATIONS = {
    "layers": ("model/bad.py", "import gridmill.control.node\n"),
    "adapters": ("stores/bad.py", "import gridmill.links.server\n"),
    "light": ("control/bad.py", "import numpy\n"),
    "codec": ("report/bad.py", "import msgspec\n"),
    "planner": ("planning/bad.py", "import gridmill.codec\n"),
}


def contracts() -> dict[str, str]:
    """Contract key -> its name, from the configuration."""
    config = configparser.ConfigParser()
    config.read(ROOT / ".importlinter")
    return {
        section.rpartition(":")[2]: config[section]["name"]
        for section in config.sections()
        if section.startswith("importlinter:contract:")
    }


def test_every_contract_has_a_violation_to_try():
    assert contracts().keys() == VIOLATIONS.keys()


@pytest.mark.parametrize("key", sorted(VIOLATIONS))
def test_a_contract_breaks_when_it_is_violated(key: str, tmp_path: Path):
    shutil.copytree(
        ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
    )
    shutil.copy(ROOT / ".importlinter", tmp_path)
    file, text = VIOLATIONS[key]
    (tmp_path / "src" / "gridmill" / file).write_text(text)
    done = subprocess.run(
        [LINT, "--no-cache"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert f"{contracts()[key]} BROKEN" in done.stdout, done.stdout
