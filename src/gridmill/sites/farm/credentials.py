"""The credentials of this home for a farm that it joined. The credentials are in HOME/clusters/NAME, and
only the user of this home can read them."""

from importlib.util import find_spec
from pathlib import Path

from gridmill.codec import decode, encode
from gridmill.domain.frozen import dataclass
from gridmill.errors import InputError, UnavailableError
from gridmill.private_files import write_private

_FARM, _KEY, _CERTIFICATE = "farm.json", "tenant.key", "tenant.crt"


@dataclass(frozen=True, slots=True, kw_only=True)
class FarmCredentials:
    """The credentials for a farm: its address, the fingerprint of its certificate (SHA-256, hex), and the
    token that the farm gave to this home. If the farm is reached through SSH, `ssh` is the destination, and
    `ssh_options` are further options of the program `ssh`."""

    host: str
    port: int
    fingerprint: str
    token: str
    ssh: str = ""
    ssh_options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CredentialFiles:
    """The folder with the credentials for one farm, and the files in this folder."""

    folder: Path

    @property
    def key(self) -> Path:
        """Returns the path of the file with the private key (PEM). The key never leaves this machine."""
        return self.folder / _KEY

    @property
    def certificate(self) -> Path:
        """Returns the path of the file with the certificate of this home (PEM), which the farm signed."""
        return self.folder / _CERTIFICATE

    @property
    def is_kept(self) -> bool:
        """Returns whether this home has joined the farm."""
        return (self.folder / _FARM).exists()

    def read(self) -> FarmCredentials:
        """Reads the credentials from the files. Raises InputError if this home never joined the farm."""
        try:
            return decode((self.folder / _FARM).read_bytes(), FarmCredentials)
        except OSError as error:
            raise InputError(
                f"no farm was joined as {self.folder.name}: there is no {self.folder}",
                hint="Run `gridmill farm invite` on the farm and paste the printed line with --join here.",
            ) from error

    def write(self, credentials: FarmCredentials, certificate: str) -> None:
        """Writes all credentials in one step: if writing fails, no file is changed. Raises OSError."""
        write_private(self.certificate, certificate.encode())
        write_private(self.folder / _FARM, encode(credentials))

    def request(self, tenant: str) -> str:
        """Returns a signing request (PEM) for the stored private key, or creates and stores a new key if
        there is none. Raises UnavailableError, OSError."""
        if find_spec("cryptography") is None:
            raise UnavailableError(
                "a farm needs a certificate, and the package `cryptography` is not installed",
                hint="pip install 'gridmill[tls]'",
            )
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        from gridmill.sites.farm import certificate_request as signing

        if not self.key.exists():
            write_private(self.key, signing.new_key())
        signed: str = signing.signing_request(self.key.read_bytes(), tenant)
        return signed


def keeping(home: Path, name: str) -> CredentialFiles:
    """Returns the credential files of this home for the farm `name`."""
    return CredentialFiles(folder=home / "clusters" / name)
