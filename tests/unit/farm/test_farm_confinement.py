"""Folders of tenants that links cannot replace, what a machine must permit, and what is removed of a user."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.unit.farm.test_farm_rules import order
from tests.unit.farm.test_farm_users import tenant

from gridmill.domain.amounts import GIB, Amounts
from gridmill.domain.confinement import Isolation
from gridmill.errors import InputError
from gridmill.farm.confinement import PodConfiner, TenantFolders, own_folder, why_not_isolated
from gridmill.farm.leftovers import remove_left_by
from gridmill.farm.unix_users import FIRST_USER, refuse_second, refuse_together
from gridmill.private_files import remove_tree
from gridmill.settings import read_settings

WHOLE = Isolation(groups="v1", namespaces=True, read_only=True)
root_only = pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0, reason="root alone gives files to others: be it"
)


def test_a_link_or_a_file_in_the_place_of_a_folder_goes(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o755)
    (elsewhere / "kept").touch()
    place = tmp_path / "place"
    place.symlink_to(elsewhere)
    own_folder(place, None, 0o700)
    assert not place.is_symlink()
    assert list(place.iterdir()) == []
    assert (elsewhere / "kept").exists()
    assert elsewhere.stat().st_mode & 0o777 == 0o755
    place.rmdir()
    place.touch()
    own_folder(place, None, 0o700)
    own_folder(place, None, 0o711)
    assert place.stat().st_mode & 0o777 == 0o711


@root_only
def test_what_says_how_pods_are_is_not_the_tenants(tmp_path: Path) -> None:
    folders = TenantFolders(folder=tmp_path / "t", root=tmp_path / "t/root", user=FIRST_USER)
    folders.make()
    folders.make_pods(["d.0"])
    owners = {
        str(path.relative_to(tmp_path / "t")): path.stat().st_uid for path in (tmp_path / "t").rglob("*")
    }
    user = {"home/attempts", "home/cache", "home/pods/d.0", "user", "root"}
    assert owners == {
        **dict.fromkeys(user, FIRST_USER),
        **dict.fromkeys(("home", "home/pods", "confined", "scratch"), 0),
    }
    (tmp_path / "t/user").rmdir()
    folders.make()  # anew
    assert (tmp_path / "t/user").stat().st_uid == FIRST_USER


def test_where_jobs_cannot_be_limited_one_tenant_is_served() -> None:
    assert why_not_isolated(WHOLE) == ""
    for isolation, missing in (
        (Isolation(namespaces=True, problem="none here"), "limits of memory, processes and CPUs"),
        (Isolation(groups="v2", problem="unshare is refused"), "namespaces"),
    ):
        why = why_not_isolated(isolation)
        assert missing in why
        assert isolation.problem in why
        one, other = tenant(FIRST_USER, "one"), tenant(FIRST_USER + 1, "other")
        refuse_second("", [one], "one", why)
        with pytest.raises(InputError, match="one tenant only, which is one"):
            refuse_second("", [one], "other", why)
        refuse_together("", [one], why)
        with pytest.raises(InputError, match="2 tenants have joined"):
            refuse_together("", [one, other], why)


def test_a_pod_sees_the_home_of_its_user_and_no_folder_for_temporary_files(tmp_path: Path) -> None:
    settings = read_settings({"GRIDMILL_HOME": str(tmp_path), "GRIDMILL_FARM_FOLDERS": "/scratch:/data"})
    folders = TenantFolders(folder=tmp_path / "t", root=tmp_path / "r", user=FIRST_USER)
    confiner = PodConfiner(folders, FIRST_USER, settings, WHOLE, lambda: Amounts(cpus=2, memory_bytes=GIB))
    assert confiner.environment()["HOME"] == str(tmp_path / "t/user")
    assert confiner.environment()["TMPDIR"] is None
    *_, text = confiner.command(order("d.0"), tmp_path, ["pod"])
    assert "secret" not in text
    for folder in ("/scratch", "/data", f"{tmp_path}/t/home", f"{tmp_path}/r"):
        assert f'"{folder}"' in text
    assert confiner.pid("d.0") is None


@root_only
def test_files_and_objects_of_a_user_are_removed_and_no_others(tmp_path: Path) -> None:
    mine, others = tmp_path / "mine", tmp_path / "others"
    for one in (mine, others):
        (one / "deep").mkdir(parents=True)
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(others)
    for path in (mine, tmp_path / "file", tmp_path / "link"):
        os.chown(path, FIRST_USER, FIRST_USER, follow_symlinks=False)
    words = [
        "setpriv",
        f"--reuid={FIRST_USER}",
        f"--regid={FIRST_USER}",
        "--clear-groups",
        "ipcmk",
        "-M",
        "64",
    ]
    made = subprocess.run(words, capture_output=True, check=False, cwd="/").returncode == 0
    removed = remove_left_by(FIRST_USER, (str(tmp_path),))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["others"]
    assert (others / "deep").is_dir()
    assert sum(one.startswith("shm ") for one in removed) == made
    assert remove_left_by(FIRST_USER, (str(tmp_path),)) == ()
    assert remove_left_by(None) == ()


@pytest.mark.long
def test_a_folder_that_is_very_deep_is_removed(tmp_path: Path) -> None:
    deep = tmp_path / "deep"
    deep.mkdir()
    descriptor = os.open(deep, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=descriptor)
        below = os.open("d", os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = below
    os.close(descriptor)
    remove_tree(deep)
    assert not deep.exists()
