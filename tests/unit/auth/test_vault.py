"""The vault: values come back only with the right key, under the right name and version."""

import stat
from pathlib import Path

import pytest

from gridmill.auth.cipher import Receiver, seal
from gridmill.auth.key_file import KeyFile
from gridmill.auth.vault import FileVault, make
from gridmill.domain.frozen import replace
from gridmill.domain.secret import Secret
from gridmill.errors import InputError, StorageError


def encrypted(vault: FileVault, name: str = "db", value: str = "hunter2 äöü\n", version: int = 1) -> Secret:
    return vault.encrypt(name, version, value, created=1.0, changed=2.0)


def test_a_value_comes_back_and_is_not_in_the_record(tmp_path: Path):
    vault = make(tmp_path / "key")
    one = encrypted(vault)
    assert vault.decrypt(one) == "hunter2 äöü\n"
    assert "hunter2" not in repr(one)
    assert (one.created, one.changed) == (1.0, 2.0)


def test_the_same_value_is_encrypted_differently_each_time(tmp_path: Path):
    vault = make(tmp_path / "key")
    assert len({encrypted(vault).sealed for _ in range(50)}) == 50


def test_the_key_file_can_be_read_by_its_owner_only(tmp_path: Path):
    encrypted(make(tmp_path / "key"))
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "change", [{"name": "other"}, {"version": 2}, {"sealed": "AAAA"}, {"sealed": "not base64!"}]
)
def test_a_value_under_another_name_or_version_or_damaged_is_refused(tmp_path: Path, change: dict[str, str]):
    vault = make(tmp_path / "key")
    with pytest.raises(StorageError, match=r"damaged, or was copied from another") as caught:
        vault.decrypt(replace(encrypted(vault), **change))
    assert "gridmill add secret" in caught.value.hint


def test_every_changed_character_is_noticed(tmp_path: Path):
    vault = make(tmp_path / "key")
    one = encrypted(vault, value="abcd")
    for at in range(len(one.sealed) - 2):
        other = "A" if one.sealed[at] != "A" else "B"
        with pytest.raises(StorageError):
            vault.decrypt(replace(one, sealed=one.sealed[:at] + other + one.sealed[at + 1 :]))


def test_without_the_key_file_the_error_names_the_secret_and_the_next_step(tmp_path: Path):
    vault = make(tmp_path / "key")
    one = encrypted(vault)
    (tmp_path / "key").unlink()
    with pytest.raises(StorageError, match=r"secret db: .*key file does not exist") as caught:
        vault.decrypt(one)
    assert str(tmp_path / "key") in caught.value.hint
    assert "gridmill add secret db" in caught.value.hint


def test_with_another_key_the_error_names_the_key(tmp_path: Path):
    one = encrypted(make(tmp_path / "key"))
    other = make(tmp_path / "other")
    encrypted(other)
    with pytest.raises(StorageError, match=one.key_id):
        other.decrypt(one)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o620])
def test_a_key_file_that_others_may_read_or_write_is_refused(tmp_path: Path, mode: int):
    vault = make(tmp_path / "key")
    one = encrypted(vault)
    (tmp_path / "key").chmod(mode)
    with pytest.raises(StorageError, match="other users can read") as caught:
        vault.decrypt(one)
    assert f"chmod 600 {tmp_path / 'key'}" in caught.value.hint
    with pytest.raises(StorageError):
        encrypted(vault)


@pytest.mark.parametrize(
    "content", ["", "rubbish", "00" * 8, "0" * 63], ids=["empty", "text", "short", "odd"]
)
def test_a_damaged_key_file_is_refused_and_kept(tmp_path: Path, content: str):
    path = tmp_path / "key"
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(StorageError, match="the key file for secrets is damaged"):
        encrypted(make(path))
    assert path.read_text() == content


def test_values_of_earlier_keys_can_be_decrypted_until_these_keys_are_dropped(tmp_path: Path):
    vault = make(tmp_path / "key")
    old = encrypted(vault)
    new_id = vault.add_key()
    new = encrypted(vault)
    assert (vault.decrypt(old), vault.decrypt(new)) == ("hunter2 äöü\n", "hunter2 äöü\n")
    assert new.key_id == new_id != old.key_id
    vault.drop_earlier_keys()
    assert vault.decrypt(new) == "hunter2 äöü\n"
    with pytest.raises(StorageError):
        vault.decrypt(old)
    assert len(KeyFile(tmp_path / "key").keys()) == 1


def test_sealed_values_reach_only_their_receiver_and_context():
    receiver, other = Receiver(), Receiver()
    sealed = seal(b"hunter2", receiver.public_key, "run-1.job.1 token")
    assert receiver.open(sealed, "run-1.job.1 token") == b"hunter2"
    assert "hunter2" not in sealed
    for who, text, context in [
        (other, sealed, "run-1.job.1 token"),
        (receiver, sealed, "run-1.job.2 token"),
        (receiver, sealed[:-4], "run-1.job.1 token"),
        (receiver, "", ""),
        (receiver, "AAAA.AAAA", ""),
    ]:
        with pytest.raises(InputError, match="another receiver"):
            who.open(text, context)


@pytest.mark.parametrize("key", ["", "AAAA", "not base64!", "A" * 44])
def test_an_invalid_public_key_is_refused(key: str):
    with pytest.raises(InputError, match="not a public key"):
        seal(b"hunter2", key, "")
