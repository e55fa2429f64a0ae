"""The unit tests on every Python from 3.11 to 3.13 that this machine has: `python -m tests.versions`.

Each version has an environment of its own, `.venv-3.N` in the repository, made from constraints.txt.
"""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VERSIONS = ("3.11", "3.12", "3.13")
_FOLDERS = ("/usr/local/bin", "/usr/bin", "/opt/python*/bin")
_OF_TOOLS = (".pyenv/versions/{}.*/bin", ".local/share/uv/python/cpython-{}.*/bin")


def candidates(version: str) -> Iterator[str]:
    """Programs that may be it: on the path, where systems keep it, and where pyenv and uv do."""
    name = f"python{version}"
    yield from filter(None, [shutil.which(name)])
    yield from (str(path) for folder in _FOLDERS for path in Path("/").glob(f"{folder[1:]}/{name}"))
    for folder in _OF_TOOLS:
        yield from (str(path) for path in sorted(Path.home().glob(f"{folder.format(version)}/{name}")))


def says_it_is(program: str, version: str) -> bool:
    """Whether it starts and can make environments: a shim of pyenv may lead nowhere."""
    asks = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"
    said = subprocess.run((program, "-c", asks), capture_output=True, text=True, check=False)
    return said.stdout.strip() == version


def python_of(version: str) -> str | None:
    """A Python of this version; None without one."""
    return next((one for one in candidates(version) if says_it_is(one, version)), None)


def environment(version: str, program: str, extras: str) -> Path:
    """Its Python, with what the tests need."""
    folder = ROOT / f".venv-{version}"
    python, ready = folder / "bin/python", folder / ".ready"
    asked = max((ROOT / name).stat().st_mtime for name in ("pyproject.toml", "constraints.txt"))
    if not ready.exists() or ready.stat().st_mtime < asked:
        subprocess.run((program, "-m", "venv", str(folder)), check=True)
        what = ("--constraint", "constraints.txt", "--editable", f".[{extras}]")
        subprocess.run((str(python), "-m", "pip", "install", "--quiet", *what), cwd=ROOT, check=True)
        ready.touch()
    return python


def main(extras: str) -> int:
    """1 when tests fail on one of them."""
    failed = 0
    for version in VERSIONS:
        program = python_of(version)
        if program is None:
            print(f"Python {version}: skipped, this machine has none", flush=True)
            continue
        python = environment(version, program, extras)
        print(f"Python {version}: {program}", flush=True)
        words = (
            str(python),
            "-m",
            "pytest",
            "tests",
            "-m",
            "not e2e and not long",
            "-n",
            "2",
            "--dist",
            "loadfile",
        )
        failed |= subprocess.run(words, cwd=ROOT, check=False).returncode != 0
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
