import io
import tarfile

import pytest

from gridmill.errors import InputError, StorageError
from gridmill.pod.python_environments import private_copy, unpacked
from gridmill.storage.unpack import bundle_hash


def member(name, kind=tarfile.REGTYPE, link="", data=b"text", mode=0o644):
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, link, mode
    info.size = len(data) if kind == tarfile.REGTYPE else 0
    return info, data


def pack(home, *members):
    """A bundle in the home; its hash, where it can be read."""
    draft = home / "bundles" / "draft.tar.gz"
    draft.parent.mkdir(exist_ok=True)
    with tarfile.open(draft, "w:gz") as tar:
        for info, data in members:
            tar.addfile(info, io.BytesIO(data))
    try:
        bundle = bundle_hash(draft)
    except InputError:
        bundle = "abc"
    draft.rename(draft.with_name(f"{bundle}.tar.gz"))
    return bundle


def test_it_is_unpacked_once(tmp_path):
    bundle = pack(tmp_path, member("src/run.sh", mode=0o755), member("a"))
    folder = unpacked(tmp_path, bundle)
    assert (folder / "src" / "run.sh").read_text() == "text"
    assert (folder / "src" / "run.sh").stat().st_mode & 0o777 == 0o755
    (tmp_path / "bundles" / f"{bundle}.tar.gz").unlink()
    assert unpacked(tmp_path, bundle) == folder


def test_links_inside_are_kept(tmp_path):
    folder = unpacked(tmp_path, pack(tmp_path, member("d/a"), member("d/b", tarfile.SYMTYPE, "a")))
    assert (folder / "d" / "b").is_symlink()
    assert (folder / "d" / "b").read_text() == "text"


def test_a_bundle_whose_content_is_not_what_it_is_called_is_refused(tmp_path):
    bundle = pack(tmp_path, member("a"))
    (tmp_path / "bundles" / f"{bundle}.tar.gz").rename(tmp_path / "bundles" / "abc.tar.gz")
    with pytest.raises(InputError, match="does not have the hash abc"):
        unpacked(tmp_path, "abc")


def test_what_a_command_does_to_its_copy_stays_there(tmp_path):
    folder = unpacked(tmp_path, pack(tmp_path, member("run.sh", mode=0o755), member("d/b")))
    private_copy(folder, tmp_path / "mine")
    assert (tmp_path / "mine" / "run.sh").stat().st_mode & 0o777 == 0o755
    (tmp_path / "mine" / "d" / "b").write_text("changed")
    (tmp_path / "mine" / "run.sh").open("a").write("more")
    assert (folder / "d" / "b").read_text() == (folder / "run.sh").read_text() == "text"


@pytest.mark.parametrize(
    "bad",
    [
        (member("../out"),),
        (member("/etc/gridmill-test"),),
        (member("a/../../out"),),
        (member("l", tarfile.SYMTYPE, "/etc"),),
        (member("l", tarfile.SYMTYPE, "../out"),),
        (member("l", tarfile.LNKTYPE, "../out"),),
        (member("fifo", tarfile.FIFOTYPE),),
        (member("d", tarfile.DIRTYPE), member("d/l", tarfile.SYMTYPE, ".."), member("d/l/../../x")),
    ],
)
def test_what_leads_out_is_refused_and_nothing_is_left(tmp_path, bad):
    home = tmp_path / "home"
    home.mkdir()
    bundle = pack(home, *bad)
    with pytest.raises(InputError):
        unpacked(home, bundle)
    assert [*(home / "cache" / "bundles").glob("[!.]*[!k]")] == []
    assert not (tmp_path / "out").exists()


def test_a_missing_or_broken_bundle_is_said(tmp_path):
    with pytest.raises(StorageError, match="not on this machine"):
        unpacked(tmp_path, "abc")
    (tmp_path / "bundles").mkdir()
    (tmp_path / "bundles" / "abc.tar.gz").write_bytes(b"no archive")
    with pytest.raises(InputError, match="damaged"):
        unpacked(tmp_path, "abc")
