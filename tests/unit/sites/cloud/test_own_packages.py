import os
import subprocess
import sys
import venv
import zipfile
from dataclasses import replace
from importlib.metadata import Distribution, PackageNotFoundError, distribution, distributions
from pathlib import Path

import pytest

from gridmill.codec import decode
from gridmill.errors import UnfitMachineError
from gridmill.sites.cloud import own_packages
from gridmill.sites.cloud.own_packages import (
    DESCRIBE,
    BasePython,
    cpu_builds,
    misfit,
    needed_packages,
    this_python,
    wheel_of,
)

HERE = replace(this_python(), libc="glibc", libc_version="2.36")
SCRIPT = "#!/usr/bin/python3.11\nprint('ran')\n"
RECORD = """demo/__init__.py,sha256=x,1
demo/__pycache__/__init__.cpython-311.pyc,,
../../../bin/demo-made,,
../../../bin/demo-own,sha256=x,1
../../../share/demo/page.txt,sha256=x,1
demo-1.0.dist-info/METADATA,sha256=x,1
demo-1.0.dist-info/WHEEL,sha256=x,1
demo-1.0.dist-info/entry_points.txt,sha256=x,1
demo-1.0.dist-info/INSTALLER,,
demo-1.0.dist-info/RECORD,,
"""


@pytest.fixture
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """An installed package `demo` with a script of its own, a script of an entry point and a data file."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "ä env"))
    site = tmp_path / "ä env" / "lib" / "python3.11" / "site-packages"
    texts = {
        "demo/__init__.py": "def main(): print('made')\n",
        "demo-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n",
        "demo-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "demo-1.0.dist-info/entry_points.txt": "[console_scripts]\ndemo-made = demo:main\n",
        "demo-1.0.dist-info/INSTALLER": "pip\n",
        "demo-1.0.dist-info/RECORD": RECORD,
        "../../../bin/demo-own": SCRIPT,
        "../../../bin/demo-made": SCRIPT,
        "../../../share/demo/page.txt": "page\n",
    }
    for name, text in texts.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text)
    return next(iter(distributions(path=[str(site)])))


def test_pip_installs_a_wheel_that_was_made_of_an_installed_package(demo, tmp_path: Path) -> None:
    wheel = wheel_of(demo, tmp_path / "wheels")
    assert wheel.name == "demo-1.0-py3-none-any.whl"
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--target", str(tmp_path / "to"))
    subprocess.run([*pip, str(wheel)], check=True, capture_output=True)
    to = tmp_path / "to"
    assert (to / "share" / "demo" / "page.txt").read_text() == "page\n"
    first, *rest = (to / "bin" / "demo-own").read_text().splitlines()
    assert (first.startswith("#!"), "3.11\n" in first, rest) == (True, False, ["print('ran')"])
    assert "from demo import main" in (to / "bin" / "demo-made").read_text()


def test_a_wheel_is_made_once_and_again_after_a_change(demo, tmp_path: Path) -> None:
    folder = tmp_path / "wheels"
    wheel = wheel_of(demo, folder)
    made = wheel.stat().st_ino
    assert wheel_of(demo, folder).stat().st_ino == made
    Path(str(demo.locate_file("demo/__init__.py"))).write_text("a = 1\n")
    assert wheel_of(demo, folder) != wheel
    assert len([*folder.rglob("*.whl")]) == 1, "the earlier wheel is deleted"


def test_other_packing_code_makes_another_wheel(
    demo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = wheel_of(demo, tmp_path / "wheels")
    monkeypatch.setattr(own_packages, "_packing_hash", lambda: "the module of another version")
    assert wheel_of(demo, tmp_path / "wheels") != wheel


def test_an_empty_line_in_the_list_of_files_is_skipped(demo, tmp_path: Path) -> None:
    record = Path(str(demo.locate_file("demo-1.0.dist-info/RECORD")))
    record.write_text(f"\n{record.read_text()}\n")
    assert "demo/__init__.py" in zipfile.ZipFile(wheel_of(demo, tmp_path / "wheels")).namelist()


def test_a_file_that_a_killed_process_left_does_not_stop_the_next_wheel(demo, tmp_path: Path) -> None:
    folder = tmp_path / "wheels"
    left = wheel_of(demo, folder).parent / ".new-left"
    left.touch()
    Path(str(demo.locate_file("demo/__init__.py"))).write_text("a = 1\n")
    wheel = wheel_of(demo, folder)
    assert [*folder.rglob("*")] == [wheel.parent, wheel]


def test_the_data_of_a_user_installation_keep_their_folders(
    demo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "usr"))
    names = zipfile.ZipFile(wheel_of(demo, tmp_path / "wheels")).namelist()
    assert "demo-1.0.data/data/share/demo/page.txt" in names


def test_a_script_of_a_python_whose_path_has_spaces_gets_a_plain_first_line(demo, tmp_path: Path) -> None:
    line = "#!/bin/sh\n'''exec' '/a home/bin/python3.11' \"$0\" \"$@\"\n' '''\nprint('ran')\n"
    Path(str(demo.locate_file("../../../bin/demo-own"))).write_text(line)
    wheel = zipfile.ZipFile(wheel_of(demo, tmp_path / "wheels"))
    assert wheel.read("demo-1.0.data/scripts/demo-own") == b"#!python\nprint('ran')\n"


def test_a_package_that_is_installed_from_its_source_folder_is_named(demo, tmp_path: Path) -> None:
    origin = '{"url": "file:///src/demo", "dir_info": {"editable": true}}'
    Path(str(demo.locate_file("demo-1.0.dist-info/direct_url.json"))).write_text(origin)
    with pytest.raises(UnfitMachineError, match="demo of this control node is installed from its source"):
        wheel_of(demo, tmp_path)


def test_a_package_that_pip_did_not_install_is_named(demo, tmp_path: Path) -> None:
    Path(str(demo.locate_file("demo-1.0.dist-info/RECORD"))).unlink()
    with pytest.raises(UnfitMachineError, match="demo of this control node was not installed by pip"):
        wheel_of(demo, tmp_path)


def test_packages_that_the_machine_has_are_left_out() -> None:
    every = {one.name.lower() for one in needed_packages("gridmill", (), {})}
    assert {"msgspec", "fastapi", "uvloop", "starlette"} <= every, "also packages of packages, and of extras"
    assert "pyarrow" not in every
    assert "pyarrow" in {one.name for one in needed_packages("gridmill", ("data",), {})}
    there = {"msgspec": distribution("msgspec").version, "pydantic": "1.10.2"}
    sent = {one.name.lower() for one in needed_packages("gridmill", (), there)}
    assert every - sent == {"msgspec"}, "pydantic 1 is not sufficient"


def names_of(packages: tuple[Distribution, ...]) -> set[str]:
    return {one.name.lower().replace("_", "-") for one in packages}


def test_packages_that_only_packages_of_the_machine_need_are_not_sent() -> None:
    assert "starlette" in names_of(needed_packages("gridmill", (), {})), "our FastAPI needs it"
    there = {"fastapi": distribution("fastapi").version, "starlette": "0.1"}
    needs = {"fastapi": ["starlette<1", "idna", "not a requirement ="]}
    sent = names_of(needed_packages("gridmill", (), there, needs))
    assert not sent & {"fastapi", "starlette"}
    assert "idna" in sent, "the machine lacks a package that its own package needs"


def test_a_package_of_the_machine_that_does_not_fit_is_replaced_with_its_requirements() -> None:
    there = {
        "fastapi": "0.1",
        "pydantic": "1.10.2",
        "annotated-types": distribution("annotated-types").version,
    }
    sent = names_of(needed_packages("gridmill", (), there, {"pydantic": ["fastapi<0.2"]}))
    assert {"pydantic", "pydantic-core"} <= sent, "pydantic 1 needs other packages"
    assert "annotated-types" not in sent


def test_a_package_that_only_the_machine_has_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(name: str) -> Distribution:
        if name == "fastapi":
            raise PackageNotFoundError(name)
        return distribution(name)

    monkeypatch.setattr(own_packages, "distribution", found)
    assert "fastapi" not in names_of(needed_packages("gridmill", (), {"fastapi": "0.100"}))


def test_a_package_that_is_missing_here_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(name: str):
        if name == "fastapi":
            raise PackageNotFoundError(name)
        return distribution(name)

    monkeypatch.setattr(own_packages, "distribution", found)
    with pytest.raises(UnfitMachineError, match="does not have all packages for the machine: fastapi"):
        needed_packages("gridmill", (), {})


@pytest.mark.parametrize(
    ("there", "why"),
    [
        (HERE, ""),
        (
            replace(HERE, version="3.12"),
            "the machine has CPython 3.12, and the control node runs with CPython",
        ),
        (replace(HERE, architecture="aarch64"), "the machine has the architecture aarch64"),
        (replace(HERE, libc=""), "the C library of the machine is unknown"),
        (
            replace(HERE, libc_version="2.17"),
            "glibc 2.17, and b-1-cp311-cp311-manylinux_2_28_x86_64.whl needs",
        ),
    ],
)
def test_another_python_or_architecture_does_not_fit(there: BasePython, why: str) -> None:
    wheels = [
        "a-1-cp311-cp311-manylinux2014_x86_64.manylinux_2_28_x86_64.whl",
        "b-1-cp311-cp311-manylinux_2_28_x86_64.whl",
        "c-1-py3-none-any.whl",
    ]
    assert misfit(HERE, there, wheels).startswith(why) or why in misfit(HERE, there, wheels)
    assert bool(misfit(HERE, there, wheels)) == bool(why)


def add_demo(folder: Path) -> None:
    """The metadata of the package demo 1.0."""
    (folder / "demo-1.0.dist-info").mkdir()
    (folder / "demo-1.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: demo\nVersion: 1.0\nRequires-Dist: msgspec>1\n"
    )


def test_a_python_describes_itself(tmp_path: Path) -> None:
    add_demo(tmp_path)  # the tests may run in a virtual environment, whose own packages do not count
    seen = {**os.environ, "PYTHONPATH": str(tmp_path)}
    words = [sys.executable, "-"]
    done = subprocess.run(words, input=DESCRIBE.encode(), capture_output=True, check=True, env=seen)
    base = decode(done.stdout, BasePython)
    assert replace(base, packages={}, requires={}) == this_python()
    assert (base.packages["demo"], base.requires["demo"]) == ("1.0", ("msgspec>1",))


def test_the_packages_of_a_virtual_environment_do_not_count(tmp_path: Path) -> None:
    venv.create(tmp_path / "env", symlinks=True)
    python = tmp_path / "env" / "bin" / "python"
    [site] = (tmp_path / "env" / "lib").glob("python3*/site-packages")
    add_demo(site)
    done = subprocess.run([python, "-"], input=DESCRIBE.encode(), capture_output=True, check=True)
    assert "demo" not in decode(done.stdout, BasePython).packages


def test_builds_without_gpu_support_are_found() -> None:
    demo = distribution("msgspec")
    assert cpu_builds([demo]) == ()
