"""The settings of a project at Google Cloud: its credentials, its regions and the network of its machines."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from gridmill.domain.frozen import dataclass
from gridmill.domain.setting_texts import REGION, SettingTexts
from gridmill.errors import InputError

KNOWN: Mapping[str, str] = {
    "project": "the id of the project (default: the project of the credentials)",
    "regions": "regions, or beginnings of their names, separated by commas (default: all regions)",
    "service_account_key": "the name of the secret with the JSON key of a service account (default: the "
    "application default credentials)",
    "service_account": "the emails of service accounts with which machines delete themselves, separated by "
    "commas (default: none)",
    "machine_role": "the role that lets a machine delete itself and no other one, as "
    "projects/PROJECT/roles/NAME (default: the service accounts have their rights at the project)",
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

_PROJECT = re.compile(r"([a-z0-9.-]+:)?[a-z][a-z0-9-]{4,28}[a-z0-9]")
_EMAIL = re.compile(r"[a-z0-9.-]+@[a-z0-9.:-]+")
_ROLE = re.compile(r"(projects|organizations)/[A-Za-z0-9.:-]+/roles/[A-Za-z0-9_.]+")
_NAME = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?")
_SUBNETWORK = re.compile(r"([a-z0-9-]+/)?[a-z]([a-z0-9-]{0,61}[a-z0-9])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class GcpSettings:
    """The parsed settings. `project` is empty if the credentials name the project. `regions` are names or
    beginnings of names of regions; an empty tuple means all regions. `machine_role` is the role that each
    machine gets at itself; empty: the service accounts have their rights at the project. `key` is the JSON
    key of a service account; empty: the application default credentials."""

    project: str = ""
    regions: tuple[str, ...] = ()
    key: str = ""
    service_accounts: tuple[str, ...] = ()
    machine_role: str = ""
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
    texts = SettingTexts(texts=settings)
    secret = settings.get("service_account_key", "")
    key = resolve(secret).strip() if secret else ""
    return GcpSettings(
        project=texts.one("project", _PROJECT, example="my-project")
        or (key_fields(key)["project_id"] if key else ""),
        regions=texts.many("regions", REGION, "us- or europe-west4"),
        key=key,
        service_accounts=texts.many("service_account", _EMAIL, "NAME@PROJECT.iam.gserviceaccount.com"),
        machine_role=texts.one("machine_role", _ROLE, example="projects/my-project/roles/gridmill_machine"),
        network=texts.one("network", _NAME, example="default") or "default",
        subnetworks=texts.many("subnetwork", _SUBNETWORK, "us-central1/machines"),
        network_tags=texts.many("network_tags", _NAME, "allow-ssh"),
        ssh_from=texts.networks("ssh_from"),
        is_private=texts.choice("address", "public", "private") == "private",
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
