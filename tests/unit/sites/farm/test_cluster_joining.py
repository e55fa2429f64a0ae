"""Join lines, addresses of farms, and what is kept of a membership."""

import stat
from pathlib import Path

import pytest
from cryptography import x509
from tests.kit.ports import free_port

from gridmill.errors import AwayError, ConflictError, InputError
from gridmill.sites.farm.credentials import FarmCredentials, keeping
from gridmill.sites.farm.join import become_tenant, read_controller, read_line, tenant_name

FINGERPRINT = "ab" * 32
SECRET = "one-time-secret-of-a-farm"


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("10.1.0.7:8701", FarmCredentials(host="10.1.0.7", port=8701, fingerprint="", token="")),
        ("gpu1", FarmCredentials(host="gpu1", port=8700, fingerprint="", token="")),
        (
            "ssh://ann@gpu1:2222",
            FarmCredentials(host="127.0.0.1", port=8700, fingerprint="", token="", ssh="ssh://ann@gpu1:2222"),
        ),
        (
            "ssh://gate/10.1.0.7:8701",
            FarmCredentials(host="10.1.0.7", port=8701, fingerprint="", token="", ssh="ssh://gate"),
        ),
    ],
)
def test_where_a_farm_is(text: str, at: FarmCredentials) -> None:
    assert read_controller(text) == at


@pytest.mark.parametrize("text", ["", "gpu1:port", "gpu1:99999", "ssh://", "ssh://-oProxyCommand=x", "a b"])
def test_what_is_no_place_of_a_farm(text: str) -> None:
    with pytest.raises(InputError) as told:
        read_controller(text)
    assert told.value.place == "--controller"


def test_a_join_line() -> None:
    assert read_line(f" {FINGERPRINT}:{SECRET}\n") == (FINGERPRINT, SECRET)
    whole = f"gridmill add cluster lab --controller 10.1.0.7:8700 --join {FINGERPRINT}:{SECRET}"
    assert read_line(whole) == (FINGERPRINT, SECRET)


@pytest.mark.parametrize("line", ["", SECRET, f"{FINGERPRINT}:short", f"{FINGERPRINT[:-1]}:{SECRET}"])
def test_what_is_no_join_line_is_not_shown(line: str) -> None:
    with pytest.raises(InputError) as told:
        read_line(line)
    assert SECRET not in str(told.value)
    assert told.value.hint


def test_of_half_a_join_line_it_is_told_what_is_missing() -> None:
    with pytest.raises(InputError, match="its secret is not complete"):
        read_line(f"{FINGERPRINT}:short")
    with pytest.raises(InputError, match="64 characters, 0 to 9 and a to f; this one has 60"):
        read_line(f"{FINGERPRINT[4:]}:{SECRET}")


def test_without_a_line_there_must_be_a_membership(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no farm was joined as far"):
        become_tenant(tmp_path, "far", "gpu1", "")


def test_a_membership_is_moved_to_another_address(tmp_path: Path) -> None:
    kept = keeping(tmp_path, "far")
    kept.request("home-1")
    kept.write(FarmCredentials(host="gpu1", port=8700, fingerprint=FINGERPRINT, token="t"), "certificate")
    become_tenant(tmp_path, "far", "gpu2:8701", "")
    assert kept.read() == FarmCredentials(host="gpu2", port=8701, fingerprint=FINGERPRINT, token="t")
    assert kept.certificate.read_text() == "certificate"


def test_a_farm_that_was_joined_under_another_name_is_not_joined_again(tmp_path: Path) -> None:
    at = FarmCredentials(host="gpu1", port=8700, fingerprint=FINGERPRINT, token="t")
    keeping(tmp_path, "far").folder.mkdir(parents=True)
    keeping(tmp_path, "far").write(at, "certificate")
    with pytest.raises(ConflictError, match="already joined that farm as far") as told:
        become_tenant(tmp_path, "near", "gpu1", f"{FINGERPRINT}:{SECRET}")
    assert "gridmill add cluster far --controller gpu1:8700" in told.value.hint
    assert [path.name for path in (tmp_path / "clusters").iterdir()] == ["far"]


def test_of_a_farm_that_does_not_answer_no_key_is_left(tmp_path: Path) -> None:
    with pytest.raises(AwayError) as told:
        become_tenant(tmp_path, "far", f"127.0.0.1:{free_port()}", f"{FINGERPRINT}:{SECRET}")
    assert "Check that `gridmill up --light` runs at the farm" in told.value.hint
    assert list((tmp_path / "clusters").iterdir()) == []


def test_keys_are_for_this_user_alone(tmp_path: Path) -> None:
    kept = keeping(tmp_path, "far")
    request = x509.load_pem_x509_csr(kept.request("home-1").encode())
    assert request.is_signature_valid
    kept.write(FarmCredentials(host="gpu1", port=8700, fingerprint=FINGERPRINT, token="t"), "certificate")
    files = [kept.key, kept.certificate, kept.folder / "farm.json"]
    assert [stat.S_IMODE(path.stat().st_mode) for path in files] == [0o600] * 3
    assert stat.S_IMODE(kept.folder.stat().st_mode) == 0o700


def test_a_home_has_one_name(tmp_path: Path) -> None:
    assert tenant_name(tmp_path) == tenant_name(tmp_path)
    assert tenant_name(tmp_path) != tenant_name(tmp_path / "other")
    assert set(tenant_name(tmp_path)) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
