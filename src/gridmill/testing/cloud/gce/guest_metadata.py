"""The metadata of a simulated Compute Engine machine.

Source: https://cloud.google.com/compute/docs/metadata/predefined-metadata-keys
"""

import json

from gridmill.testing.cloud.gce.records import Instance


def machine_metadata(instance: Instance, project: str) -> tuple[tuple[str, str], ...]:
    """Returns the metadata of a machine by path, such as `instance/preempted`."""
    number = "123456789012"
    items = {
        "project/project-id": project,
        "project/numeric-project-id": number,
        "instance/id": instance.id,
        "instance/name": instance.name,
        "instance/hostname": f"{instance.name}.{instance.zone}.c.{project}.internal",
        "instance/zone": f"projects/{number}/zones/{instance.zone}",
        "instance/machine-type": f"projects/{number}/machineTypes/{instance.machine_type}",
        "instance/preempted": "FALSE",
        "instance/maintenance-event": "NONE",
        "instance/description": instance.description,
        "instance/tags": json.dumps(list(instance.tags)),
        "instance/network-interfaces/0/ip": instance.address,
        "instance/network-interfaces/0/access-configs/0/external-ip": instance.public_address,
        "instance/scheduling/automatic-restart": str(instance.restarts).upper(),
        "instance/scheduling/on-host-maintenance": instance.on_maintenance,
        "instance/scheduling/preemptible": str(instance.is_spot).upper(),
    }
    items |= {f"instance/attributes/{key}": value for key, value in instance.metadata}
    if instance.service_account:
        items |= _account(instance)
    return tuple(items.items())


def _account(instance: Instance) -> dict[str, str]:
    token = {"access_token": instance.token, "expires_in": 3599, "token_type": "Bearer"}
    return {
        f"instance/service-accounts/{name}/{key}": value
        for name in ("default", instance.service_account)
        for key, value in (
            ("aliases", "default"),
            ("email", instance.service_account),
            ("scopes", "\n".join(instance.scopes)),
            ("token", json.dumps(token)),
        )
    }
