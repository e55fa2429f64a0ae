"""The settings of an AWS account: its regions, its credentials and the network of its machines."""

import re
from collections.abc import Callable, Mapping

from gridmill.domain.frozen import dataclass
from gridmill.domain.setting_texts import REGION, SettingTexts
from gridmill.errors import InputError

KNOWN: Mapping[str, str] = {
    "regions": "regions, or beginnings of their names, separated by commas (default: all enabled regions)",
    "profile": "a profile of ~/.aws with the credentials",
    "access_key_id": "the id of an access key (default: the profile, or the environment variables of AWS)",
    "secret_access_key": "the name of the secret with the access key",
    "session_token": "the name of the secret with the session token of temporary credentials",
    "instance_role": "true: use the role of the EC2 machine on which the control node runs",
    "subnet": "subnets for the machines, separated by commas (default: the default network of each region)",
    "security_group": "a security group that permits SSH (default: Gridmill makes one for each machine)",
    "ssh_from": "networks from which SSH is permitted, separated by commas (default: everywhere)",
    "address": "private: connect to the private addresses of the machines (default: public)",
    "endpoint_url": "the URL of a server that has the API of EC2, for tests",
    "cache_folder": "the folder in which types and prices of machines are cached",
}
"""The settings of an account, with their descriptions."""


def known_settings() -> Mapping[str, str]:
    """Return the settings of an account, with their descriptions."""
    return KNOWN


DEFAULT_REGION = "us-east-1"
"""The region whose servers answer questions about the whole account."""
_REGION = re.compile(r"[a-z]{2}(-[a-z]+)+-\d+")
_SUBNET, _GROUP = re.compile(r"subnet-[0-9a-f]+"), re.compile(r"sg-[0-9a-f]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class AwsSettings:
    """The parsed settings. `regions` are names or beginnings of names of regions; an empty tuple means all
    regions. `access_key` is the access key itself."""

    regions: tuple[str, ...] = ()
    profile: str = ""
    access_key_id: str = ""
    access_key: str = ""
    session_token: str = ""
    has_instance_role: bool = False
    subnets: tuple[str, ...] = ()
    security_group: str = ""
    ssh_from: tuple[str, ...] = ()
    is_private: bool = False
    endpoint_url: str = ""
    cache_folder: str = ""

    def __repr__(self) -> str:
        return f"AwsSettings(regions={self.regions!r}, access_key_id={self.access_key_id!r})"

    @property
    def are_exact(self) -> bool:
        """Whether the regions are names, so that the provider need not be asked for its regions."""
        return bool(self.regions) and all(_REGION.fullmatch(region) for region in self.regions)

    @property
    def home_region(self) -> str:
        """The region whose servers answer questions about the whole account."""
        exact = [region for region in self.regions if _REGION.fullmatch(region)]
        return exact[0] if exact else DEFAULT_REGION

    def permits(self, region: str) -> bool:
        """Return whether machines may be rented in the region."""
        return not self.regions or region.startswith(self.regions)


def read_settings(settings: Mapping[str, str], resolve: Callable[[str], str]) -> AwsSettings:
    """Parse the settings. `resolve` returns the value of a secret with a given name. Raises InputError."""
    _check_key(settings)
    texts = SettingTexts(texts=settings)
    secret = settings.get("secret_access_key", "")
    token = settings.get("session_token", "")
    return AwsSettings(
        regions=texts.many("regions", REGION, "us- or eu-west-1", "is not the beginning of a region's name"),
        profile=settings.get("profile", ""),
        access_key_id=settings.get("access_key_id", ""),
        access_key=resolve(secret).strip() if secret else "",
        session_token=resolve(token).strip() if token else "",
        has_instance_role=texts.flag("instance_role"),
        subnets=texts.many("subnet", _SUBNET, "subnet-0123456789abcdef0", "is not an id"),
        security_group=next(
            iter(texts.many("security_group", _GROUP, "sg-0123456789abcdef0", "is not an id")), ""
        ),
        ssh_from=texts.networks("ssh_from"),
        is_private=texts.choice("address", "public", "private") == "private",
        endpoint_url=settings.get("endpoint_url", ""),
        cache_folder=settings.get("cache_folder", ""),
    )


def _check_key(settings: Mapping[str, str]) -> None:
    has_id, has_key = bool(settings.get("access_key_id")), bool(settings.get("secret_access_key"))
    if has_id != has_key:
        raise InputError(
            "access_key_id and secret_access_key must be set together",
            hint="Run `gridmill add secret aws-key`, then set secret_access_key=aws-key.",
            place="settings.access_key_id" if has_id else "settings.secret_access_key",
        )
    if has_id and settings.get("profile"):
        raise InputError(
            "a profile and an access key are both set", hint="Set only one.", place="settings.profile"
        )
