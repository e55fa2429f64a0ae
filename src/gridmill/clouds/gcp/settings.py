"""The settings of a project at Google Cloud: its credentials, its regions and the network of its machines."""

import ipaddress
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from gridmill.domain.frozen import dataclass
from gridmill.errors import InputError

KNOWN: Mapping[str, str] = {
    "project": "the id of the project (default: the project of the credentials)",
    "regions": "regions, or beginnings of their names, separated by commas (default: all regions)",
    "service_account_key": "the name of the secret with the JSON key of a service account (default: the "
    "application default credentials)",
    "service_account": "the email of a service account that may delete machines, for the machines' own end "
    "(default: none)",
    "network": "the network of the machines (default: default)",
    "subnetwork": "subnetworks for the machines, as NAME or REGION/NAME, separated by commas (default: the "
    "automatic one of each region)",
    "network_tags": "tags of the machines for which firewall rules permit SSH, separated by commas "
    "(default: Gridmill makes a rule for each lease)",
    "ssh_from": "networks from which SSH is permitted, separated by commas (default: everywhere)",
    "address": "private: connect to the private addresses of the machines (default: public)",
    "endpoint_url": "the URL of a server that has the APIs of Google Cloud, for tests",
    "cache_folder": "the folder in which types and prices of machines are cached",
}
"""The settings of a project, with their descriptions."""

_PREFIX = re.compile(r"[a-z0-9-]+")
_PROJECT = re.compile(r"([a-z0-9.-]+:)?[a-z][a-z0-9-]{4,28}[a-z0-9]")
_EMAIL = re.compile(r"[a-z0-9.-]+@[a-z0-9.:-]+")
_NAME = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?")
_SUBNETWORK = re.compile(r"([a-z0-9-]+/)?[a-z]([a-z0-9-]{0,61}[a-z0-9])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class GcpSettings:
    """The parsed settings. `project` is empty if the credentials name the project. `regions` are names or
    beginnings of names of regions; an empty tuple means all regions. `key` is the JSON key of a service
    account; empty: the application default credentials."""

    project: str = ""
    regions: tuple[str, ...] = ()
    key: str = ""
    service_account: str = ""
    network: str = "default"
    subnetworks: tuple[str, ...] = ()
    network_tags: tuple[str, ...] = ()
    ssh_from: tuple[str, ...] = ()
    is_private: bool = False
    endpoint_url: str = ""
    cache_folder: str = ""

    def __repr__(self) -> str:
        return f"GcpSettings(project={self.project!r}, regions={self.regions!r})"

    def permits(self, region: str) -> bool:
        """Return whether machines may be rented in the region."""
        return not self.regions or region.startswith(self.regions)


def known_settings() -> Mapping[str, str]:
    """Return the names of the settings with their descriptions."""
    return KNOWN


def read_settings(settings: Mapping[str, str], resolve: Callable[[str], str]) -> GcpSettings:
    """Parse the settings. `resolve` returns the value of a secret with a given name. Raises InputError."""
    secret = settings.get("service_account_key", "")
    key = resolve(secret).strip() if secret else ""
    return GcpSettings(
        project=_one(settings, "project", _PROJECT, "my-project")
        or (key_fields(key)["project_id"] if key else ""),
        regions=_all(settings, "regions", _PREFIX, "us- or europe-west4"),
        key=key,
        service_account=_one(settings, "service_account", _EMAIL, "NAME@PROJECT.iam.gserviceaccount.com"),
        network=_one(settings, "network", _NAME, "default") or "default",
        subnetworks=_all(settings, "subnetwork", _SUBNETWORK, "us-central1/machines"),
        network_tags=_all(settings, "network_tags", _NAME, "allow-ssh"),
        ssh_from=_networks(settings),
        is_private=_choice(settings, "address", ("public", "private")) == "private",
        endpoint_url=settings.get("endpoint_url", "").rstrip("/"),
        cache_folder=settings.get("cache_folder", ""),
    )


def key_fields(key: str) -> dict[str, Any]:
    """Return the fields of the JSON key of a service account. Raises InputError."""
    try:
        fields = json.loads(key)
    except ValueError:
        fields = None
    if not isinstance(fields, dict) or not {"client_email", "private_key", "project_id"} <= set(fields):
        raise InputError(
            "the secret is not the JSON key of a service account",
            hint="gcloud iam service-accounts keys create key.json --iam-account EMAIL && "
            "gridmill add secret gcp-key --file key.json",
            place="settings.service_account_key",
        )
    return fields


def words(text: str) -> tuple[str, ...]:
    """Split a text at commas, without empty words."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _one(settings: Mapping[str, str], name: str, form: re.Pattern[str], example: str) -> str:
    value = settings.get(name, "").strip()
    if value and not form.fullmatch(value):
        raise _wrong(name, value, "is not valid", example)
    return value


def _all(settings: Mapping[str, str], name: str, form: re.Pattern[str], example: str) -> tuple[str, ...]:
    values = words(settings.get(name, ""))
    for value in values:
        if not form.fullmatch(value):
            raise _wrong(name, value, "is not valid", example)
    return values


def _networks(settings: Mapping[str, str]) -> tuple[str, ...]:
    networks = words(settings.get("ssh_from", ""))
    for network in networks:
        try:
            ipaddress.ip_network(network)
        except ValueError:
            raise _wrong("ssh_from", network, "is not a network", "192.0.2.0/24") from None
    return networks


def _choice(settings: Mapping[str, str], name: str, choices: tuple[str, str]) -> str:
    value = settings.get(name) or choices[0]
    if value not in choices:
        raise _wrong(name, value, f"is neither {choices[0]} nor {choices[1]}", choices[0])
    return value


def _wrong(name: str, value: str, problem: str, example: str) -> InputError:
    return InputError(f"{value!r} {problem}", hint=f"Write for example {example}.", place=f"settings.{name}")
