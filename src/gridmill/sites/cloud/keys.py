"""The keys of rented machines, in HOME/leases/LEASE/TRY: a key pair for the login, a key pair for the
machine's SSH server, and the configuration with which `ssh` uses them. Only the user of this home can read
the files.
"""

import errno
import shutil
import subprocess
import tempfile
from pathlib import Path

from gridmill.domain.frozen import dataclass
from gridmill.errors import NotFoundError, StorageError, UnavailableError
from gridmill.private_files import write_private
from gridmill.sites.cloud.boot import MachineKeys

LEASES = "leases"
"""The folder in the home with one folder for each lease."""
_USER = "root"
_PORT = 22


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyFolder:
    """The folder with the keys of the machine of one try. `alias` is the name of the machine for `ssh`."""

    path: Path
    alias: str

    @property
    def config(self) -> Path:
        """Returns the path of the configuration file for `ssh`."""
        return self.path / "config"

    @property
    def options(self) -> tuple[str, ...]:
        """Returns the options with which `ssh` reaches the machine under the name `alias`."""
        return "-F", str(self.config)

    @property
    def is_reachable(self) -> bool:
        """Returns whether the address of the machine is stored."""
        return self.config.exists()

    def make(self) -> MachineKeys:
        """Returns the keys of the machine. The keys are created once, so that a repeated request to the
        provider contains the same keys. Raises StorageError, UnavailableError."""
        if not self.path.is_dir():
            try:
                self._create()
            except OSError as error:
                raise StorageError(f"cannot be written: {error.strerror}", place=str(self.path)) from error
        return self.read()

    def _create(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft = Path(tempfile.mkdtemp(prefix=".keys-", dir=self.path.parent))
        try:
            for name in ("user", "host"):
                _generate(draft / name, f"gridmill-{self.alias}")
            draft.rename(self.path)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):  # another thread has created the keys
                raise
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def read(self) -> MachineKeys:
        """Returns the keys. Raises NotFoundError if the folder was deleted."""
        try:
            return MachineKeys(
                host_private=(self.path / "host").read_text(),
                host_public=(self.path / "host.pub").read_text().strip(),
                user_public=(self.path / "user.pub").read_text().strip(),
            )
        except OSError as error:
            raise NotFoundError(
                f"the keys of the rented machine {self.alias} are missing in {self.path}",
                hint="The machine cannot be used without them, and another machine replaces it.",
            ) from error

    def write_config(self, address: str, *, is_key_injected: bool) -> None:
        """Stores the address of the machine. If the provider could not give the host key to the machine, the
        machine's own key is trusted at the first contact and pinned from then on. Raises StorageError."""
        known = self.path / "known_hosts"
        try:
            if is_key_injected:
                kind, key, *_ = (self.path / "host.pub").read_text().split()
                write_private(known, f"{self.alias} {kind} {key}\n".encode())
            write_private(self.config, self._config(address, known, is_key_injected).encode())
        except OSError as error:
            raise StorageError(f"cannot be written: {error.strerror}", place=str(self.path)) from error

    def _config(self, address: str, known: Path, is_key_injected: bool) -> str:
        values = {
            "HostName": address,
            "Port": _PORT,
            "User": _USER,
            "IdentityFile": _quoted(self.path / "user"),
            "IdentitiesOnly": "yes",
            "IdentityAgent": "none",
            "HostKeyAlias": self.alias,
            "UserKnownHostsFile": _quoted(known),
            "GlobalKnownHostsFile": "none",
            "StrictHostKeyChecking": "yes" if is_key_injected else "accept-new",
            "UpdateHostKeys": "no",
            "PasswordAuthentication": "no",
            "LogLevel": "ERROR",
        }
        return f"Host {self.alias}\n" + "".join(f"  {name} {value}\n" for name, value in values.items())


def _quoted(path: Path) -> str:
    """Returns the path as a value in the configuration of `ssh`, which replaces percent signs."""
    return '"' + str(path).replace("%", "%%") + '"'


def _generate(path: Path, comment: str) -> None:
    words = ("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path))
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    except FileNotFoundError as error:
        raise UnavailableError(
            "a rented machine is reached over SSH, and the programs ssh and ssh-keygen are not installed",
            hint="apt-get install openssh-client",
        ) from error
    if done.returncode:
        raise StorageError(f"ssh-keygen failed: {done.stderr.strip()}", place=str(path))


def keys_of(home: Path, lease: str, number: int) -> KeyFolder:
    """Returns the folder with the keys for the machine of the try `number` of a lease."""
    return KeyFolder(path=home / LEASES / lease / str(number), alias=f"{lease}-{number}")


def ssh_words(home: Path, lease: str) -> tuple[str, ...]:
    """Returns the command line of `ssh` for the present machine of a lease; its last word is the
    destination. Raises NotFoundError if no machine of the lease can be reached with the keys in this
    home."""
    folder = home / LEASES / lease
    tries = sorted((int(one.name) for one in folder.glob("[0-9]*") if one.name.isdigit()), reverse=True)
    for number in tries:
        keys = keys_of(home, lease, number)
        if keys.is_reachable:
            return "ssh", *keys.options, keys.alias
    why = "has no address yet" if tries else "has no machine with keys in this home"
    raise NotFoundError(
        f"lease {lease} {why}",
        hint="`gridmill list leases` shows the leases. The keys are on the machine of the control node.",
    )


def delete_keys(home: Path, lease: str) -> None:
    """Deletes everything that was stored for the machines of a lease. May be repeated."""
    shutil.rmtree(home / LEASES / lease, ignore_errors=True)
