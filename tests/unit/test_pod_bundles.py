import io
import tarfile

import pytest

from gridmill.errors import InputError, StorageError
from gridmill.pod.bundles import unpacked


def member(name, kind=tarfile.REGTYPE, link="", data=b"text", mode=0o644):
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, link, mode
    info.size = len(data) if kind == tarfile.REGTYPE else 0
    return info, data


def pack(home, *members, bundle="abc"):
    (home / "bundles").mkdir(exist_ok=True)
    with tarfile.open(home / "bundles" / f"{bundle}.tar.gz", "w:gz") as tar:
        for info, data in members:
            tar.addfile(info, io.BytesIO(data))


def test_it_is_unpacked_once(tmp_path):
    pack(tmp_path, member("src", tarfile.DIRTYPE, mode=0o755), member("src/run.sh", mode=0o755), member("a"))
    folder = unpacked(tmp_path, "abc")
    assert (folder / "src" / "run.sh").read_text() == "text"
    assert (folder / "src" / "run.sh").stat().st_mode & 0o777 == 0o755
    (tmp_path / "bundles" / "abc.tar.gz").unlink()
    assert unpacked(tmp_path, "abc") == folder


def test_links_inside_are_kept(tmp_path):
    pack(tmp_path, member("d/a"), member("d/b", tarfile.SYMTYPE, "a"), member("c", tarfile.LNKTYPE, "d/a"))
    folder = unpacked(tmp_path, "abc")
    assert (folder / "d" / "b").is_symlink()
    assert (folder / "c").read_text() == "text"


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
    pack(home, *bad)
    with pytest.raises(InputError):
        unpacked(home, "abc")
    assert not (home / "cache" / "bundles" / "abc").exists()
    assert not (tmp_path / "out").exists()


def test_a_missing_or_broken_bundle_is_said(tmp_path):
    with pytest.raises(StorageError, match="not on this machine"):
        unpacked(tmp_path, "abc")
    (tmp_path / "bundles").mkdir()
    (tmp_path / "bundles" / "abc.tar.gz").write_bytes(b"no archive")
    with pytest.raises(InputError, match="cannot be unpacked"):
        unpacked(tmp_path, "abc")
