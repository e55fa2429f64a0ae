"""Which file system a folder is on, and what a storage root must be able to do."""

import os
from pathlib import Path

import pytest

from gridmill.errors import StorageError
from gridmill.storage import filesystem
from gridmill.storage.filesystem import check_home, check_root, find_mount, mount_of

MOUNTINFO = r"""22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 22 0:26 / /proc rw,nosuid - proc proc rw
41 22 0:50 / /mnt/shared rw,relatime shared:9 - nfs4 10.0.0.1:/export rw,vers=4.2,addr=10.0.0.1
42 22 0:51 / /mnt/old rw - nfs 10.0.0.1:/old rw,vers=3,nolock
43 22 0:52 / /scratch rw - lustre 10.0.0.2@tcp:/fs rw,flock
44 22 0:53 /sub /home/with\040space rw - fuse.sshfs me@host:/ rw,user_id=0
45 41 0:54 / /mnt/shared/local rw - xfs /dev/vdb rw
46 22 0:55 / /scratch rw - tmpfs none rw
not a line
"""


@pytest.mark.parametrize(
    ("path", "type", "shared"),
    [
        ("/var/lib/gridmill", "ext4", False),
        ("/mnt/shared/a/b", "nfs4", True),
        ("/mnt/sharedother", "ext4", False),
        ("/mnt/old", "nfs", True),
        ("/mnt/shared/local/x", "xfs", False),
        ("/home/with space/x", "fuse.sshfs", True),
        ("/scratch/x", "tmpfs", False),  # mounted over Lustre
    ],
)
def test_the_mount_is_the_longest_that_the_path_lies_on(path: str, type: str, shared: bool) -> None:
    mount = mount_of(Path(path), MOUNTINFO)
    assert mount is not None
    assert (mount.type, mount.shared) == (type, shared)


def test_where_nothing_is_known_nothing_is_said() -> None:
    assert mount_of(Path("/x"), "") is None


def test_this_machine_tells_where_a_folder_is(tmp_path: Path) -> None:
    mount = find_mount(tmp_path)
    assert mount is not None
    assert str(tmp_path).startswith(mount.point)
    check_home(tmp_path)


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that the system says is on NFS."""
    told = tmp_path / "mountinfo"
    told.write_text(f"1 0 0:1 / / rw - ext4 d rw\n2 1 0:2 / {tmp_path.resolve()}/nfs rw - nfs4 s:/x rw\n")
    monkeypatch.setattr(filesystem, "_MOUNTS", told)
    return tmp_path / "nfs"


def test_a_home_there_is_refused_with_the_way_out(shared: Path) -> None:
    with pytest.raises(StorageError, match="nfs4") as caught:
        check_home(shared / "home")
    assert "GRIDMILL_ROOT" in caught.value.hint


def test_a_root_there_is_tried_and_left_clean(shared: Path) -> None:
    check_root(shared / "root")
    assert list((shared / "root").iterdir()) == []


@pytest.mark.parametrize("options", ["rw,vers=3,nolock,local_lock=all", "rw,vers=3,local_lock=flock"])
def test_a_root_whose_locks_other_machines_do_not_see_is_refused(shared: Path, options: str) -> None:
    told = shared.parent / "mountinfo"
    told.write_text(told.read_text().replace("nfs4 s:/x rw", f"nfs s:/x {options}"))
    with pytest.raises(StorageError, match="hides locks from other machines") as caught:
        check_root(shared / "root")
    assert "Mount it without" in caught.value.hint
    assert not shared.exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_root_that_cannot_do_it_is_refused(shared: Path) -> None:
    shared.mkdir()
    shared.chmod(0o500)
    with pytest.raises(StorageError, match="lacks what tables need"):
        check_root(shared / "root")
