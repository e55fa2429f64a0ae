"""Join lines, addresses of farms, and what is kept of a membership."""

import stat
from pathlib import Path

import pytest
from cryptography import x509

from gridmill.errors import InputError
from gridmill.sites.cluster.credentials import Credentials, keeping
from gridmill.sites.cluster.joining import become_source, read_controller, read_line, source_name

FINGERPRINT = "ab" * 32
SECRET = "one-time-secret-of-a-farm"


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("10.1.0.7:8701", Credentials(host="10.1.0.7", port=8701, fingerprint="", token="")),
        ("gpu1", Credentials(host="gpu1", port=8700, fingerprint="", token="")),
        (
            "ssh://ann@gpu1:2222",
            Credentials(host="127.0.0.1", port=8700, fingerprint="", token="", ssh="ssh://ann@gpu1:2222"),
        ),
        (
            "ssh://gate/10.1.0.7:8701",
            Credentials(host="10.1.0.7", port=8701, fingerprint="", token="", ssh="ssh://gate"),
        ),
    ],
)
def test_where_a_farm_is(text: str, at: Credentials) -> None:
    assert read_controller(text) == at


@pytest.mark.parametrize("text", ["", "gpu1:port", "gpu1:99999", "ssh://", "ssh://-oProxyCommand=x", "a b"])
def test_what_is_no_place_of_a_farm(text: str) -> None:
    with pytest.raises(InputError) as told:
        read_controller(text)
    assert told.value.place == "--controller"


def test_a_join_line() -> None:
    assert read_line(f" {FINGERPRINT}:{SECRET}\n") == (FINGERPRINT, SECRET)


@pytest.mark.parametrize("line", ["", SECRET, f"{FINGERPRINT}:short", f"{FINGERPRINT[:-1]}:{SECRET}"])
def test_what_is_no_join_line_is_not_shown(line: str) -> None:
    with pytest.raises(InputError) as told:
        read_line(line)
    assert SECRET not in str(told.value)
    assert told.value.hint


def test_without_a_line_there_must_be_a_membership(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no membership"):
        become_source(tmp_path, "far", "gpu1", "")


def test_a_membership_is_moved_to_another_address(tmp_path: Path) -> None:
    kept = keeping(tmp_path, "far")
    kept.request("home-1")
    kept.write(Credentials(host="gpu1", port=8700, fingerprint=FINGERPRINT, token="t"), "certificate")
    become_source(tmp_path, "far", "gpu2:8701", "")
    assert kept.read() == Credentials(host="gpu2", port=8701, fingerprint=FINGERPRINT, token="t")
    assert kept.certificate.read_text() == "certificate"


def test_keys_are_for_this_user_alone(tmp_path: Path) -> None:
    kept = keeping(tmp_path, "far")
    request = x509.load_pem_x509_csr(kept.request("home-1").encode())
    assert request.is_signature_valid
    kept.write(Credentials(host="gpu1", port=8700, fingerprint=FINGERPRINT, token="t"), "certificate")
    files = [kept.key, kept.certificate, kept.folder / "farm.json"]
    assert [stat.S_IMODE(path.stat().st_mode) for path in files] == [0o600] * 3
    assert stat.S_IMODE(kept.folder.stat().st_mode) == 0o700


def test_a_home_has_one_name(tmp_path: Path) -> None:
    assert source_name(tmp_path) == source_name(tmp_path)
    assert source_name(tmp_path) != source_name(tmp_path / "other")
    assert set(source_name(tmp_path)) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
