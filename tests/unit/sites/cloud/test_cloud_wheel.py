import subprocess
import sys
import zipfile
from io import BytesIO
from pathlib import Path

import pytest

from gridmill.errors import UnavailableError
from gridmill.sites.cloud.wheel import build_wheel, installed_hash
from gridmill.version import __version__


def test_the_wheel_has_all_files_and_is_the_same_each_time():
    wheel = build_wheel()
    assert wheel == build_wheel()
    names = zipfile.ZipFile(BytesIO(wheel.content)).namelist()
    assert {"gridmill/sites/cloud/watch.sh", "gridmill/py.typed", "gridmill/__main__.py"} <= set(names)
    assert not [name for name in names if "__pycache__" in name]


def test_another_content_has_another_hash(tmp_path: Path):
    (tmp_path / "a.py").write_text("1")
    before = installed_hash(tmp_path)
    (tmp_path / "a.py").write_text("2")
    assert installed_hash(tmp_path) != before


def test_pip_installs_the_wheel_and_it_runs(tmp_path: Path):
    wheel = build_wheel()
    (tmp_path / wheel.name).write_bytes(wheel.content)
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target")
    subprocess.run(
        [*pip, str(tmp_path / "there"), str(tmp_path / wheel.name)], check=True, capture_output=True
    )
    shown = "import gridmill, gridmill.version as v; print(gridmill.__file__, v.__version__)"
    words = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path / 'there')!r}); {shown}"]
    said = subprocess.run(words, check=True, capture_output=True, text=True, cwd=tmp_path).stdout.split()
    assert said == [str(tmp_path / "there" / "gridmill" / "__init__.py"), __version__]
    assert (tmp_path / "there" / "bin" / "gridmill").exists()


def test_an_installation_that_is_being_replaced_is_read_again_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.py"
    path.write_text("1")
    is_file = Path.is_file

    def replaced(one: Path) -> bool:
        seen = is_file(one)
        path.unlink(missing_ok=True)
        return seen

    monkeypatch.setattr(Path, "is_file", replaced)
    with pytest.raises(UnavailableError, match=r"a\.py: No such file"):
        installed_hash(tmp_path)
