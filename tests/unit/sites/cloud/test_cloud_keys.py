import shutil
import stat
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gridmill.errors import NotFoundError
from gridmill.sites.cloud.keys import delete_keys, keys_of, ssh_words

pytestmark = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="apt-get install openssh-client")


def effective(config: Path, host: str) -> dict[str, str]:
    """What ssh makes of the configuration."""
    out = subprocess.run(["ssh", "-G", "-F", config, host], capture_output=True, text=True, check=True).stdout
    return dict(line.split(" ", 1) for line in out.splitlines() if " " in line)


def test_keys_are_made_once_and_are_private(tmp_path):
    folder = keys_of(tmp_path / "my home", "l-1", 1)
    with ThreadPoolExecutor(4) as pool:
        made = set(pool.map(lambda _: folder.make(), range(4)))
    assert len(made) == 1
    assert made == {folder.read()}
    assert stat.S_IMODE((folder.path / "user").stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700


def test_each_try_has_keys_of_its_own(tmp_path):
    assert keys_of(tmp_path, "l-1", 1).make() != keys_of(tmp_path, "l-1", 2).make()


def test_ssh_uses_the_keys_of_the_machine_and_trusts_only_its_host_key(tmp_path):
    folder = keys_of(tmp_path / "100% mine", "l-1", 1)
    folder.make()
    folder.write_config("10.0.0.7", is_key_injected=True)
    used = effective(folder.config, folder.alias)
    assert (used["hostname"], used["user"], used["port"]) == ("10.0.0.7", "root", "22")
    identity = used["identityfile"].replace("%%", "%")  # ssh replaces it when it opens the file
    assert (identity, used["identitiesonly"]) == (str(folder.path / "user"), "yes")
    assert used["stricthostkeychecking"] == "true"
    assert (folder.path / "known_hosts").read_text().split()[0] == "l-1-1"


def test_without_an_injected_key_the_first_key_is_pinned(tmp_path):
    folder = keys_of(tmp_path, "l-1", 1)
    folder.make()
    folder.write_config("10.0.0.7", is_key_injected=False)
    assert effective(folder.config, folder.alias)["stricthostkeychecking"] == "accept-new"
    assert not (folder.path / "known_hosts").exists()


def test_deleted_keys_are_missing_with_a_reason(tmp_path):
    folder = keys_of(tmp_path, "l-1", 1)
    folder.make()
    delete_keys(tmp_path, "l-1")
    delete_keys(tmp_path, "l-1")
    with pytest.raises(NotFoundError, match="keys of the rented machine l-1-1"):
        folder.read()


def test_the_last_machine_of_a_lease_that_has_an_address_is_the_destination(tmp_path):
    with pytest.raises(NotFoundError, match="no machine with keys"):
        ssh_words(tmp_path, "l-1")
    for number in (1, 2, 10):
        keys_of(tmp_path, "l-1", number).make()
    with pytest.raises(NotFoundError, match="no address yet"):
        ssh_words(tmp_path, "l-1")
    for number in (1, 2):
        keys_of(tmp_path, "l-1", number).write_config("10.0.0.7", is_key_injected=True)
    assert ssh_words(tmp_path, "l-1") == ("ssh", "-F", str(tmp_path / "leases/l-1/2/config"), "l-1-2")
