"""The permissions that Gridmill needs at Google Cloud, as one table, and the custom roles with exactly these
permissions.

Source: "Compute Engine IAM roles and permissions", and the sections "IAM permissions" of the methods in the
Compute Engine API reference.
"""

import json

COMPUTE: tuple[str, ...] = (
    "compute.acceleratorTypes.list",
    "compute.addresses.delete",
    "compute.addresses.list",
    "compute.disks.create",
    "compute.disks.delete",
    "compute.disks.list",
    "compute.disks.setLabels",
    "compute.disks.useReadOnly",
    "compute.firewalls.create",
    "compute.firewalls.delete",
    "compute.firewalls.list",
    "compute.globalAddresses.delete",
    "compute.globalAddresses.list",
    "compute.globalOperations.get",
    "compute.images.create",
    "compute.images.delete",
    "compute.images.get",
    "compute.images.getFromFamily",
    "compute.images.list",
    "compute.images.setLabels",
    "compute.images.useReadOnly",
    "compute.instances.create",
    "compute.instances.delete",
    "compute.instances.get",
    "compute.instances.list",
    "compute.instances.setLabels",
    "compute.instances.setMetadata",
    "compute.instances.setTags",
    "compute.machineTypes.list",
    "compute.networks.updatePolicy",
    "compute.projects.get",
    "compute.regions.list",
    "compute.subnetworks.use",
    "compute.subnetworks.useExternalIp",
    "compute.zoneOperations.get",
    "compute.zones.list",
)
"""The permissions at the project."""
SERVICE_ACCOUNT: tuple[str, ...] = ("compute.instances.setServiceAccount",)
"""The further permissions at the project if the machines have a service account."""
OWN_POLICY: tuple[str, ...] = ("compute.disks.setIamPolicy", "compute.instances.setIamPolicy")
"""The further permissions at the project if each machine may delete only itself (setting `machine_role`)."""
ACT_AS = "iam.serviceAccounts.actAs"
"""The permission at the service account of the machines."""
SELF_END: tuple[str, ...] = ("compute.disks.delete", "compute.instances.delete")
"""The permissions of the service account of the machines. A machine that deletes itself deletes its disk."""
SELF_END_CONDITION = (
    'resource.name.extract("/instances/{name}").startsWith("gridmill-") || '
    'resource.name.extract("/disks/{name}").startsWith("gridmill-")'
)
"""The condition for the role of the machines: only machines and disks that Gridmill has named."""


def role() -> dict[str, object]:
    """Return the custom role with exactly the permissions that Gridmill needs at the project."""
    return {
        "title": "Gridmill",
        "description": "Rents machines and returns them",
        "stage": "GA",
        "includedPermissions": sorted(COMPUTE + SERVICE_ACCOUNT + OWN_POLICY),
    }


def self_end_role() -> dict[str, object]:
    """Return the custom role of the machines."""
    return {
        "title": "Gridmill machine",
        "description": "Deletes machines of Gridmill",
        "stage": "GA",
        "includedPermissions": sorted(SELF_END),
    }


def text_of(made: dict[str, object]) -> str:
    """Return a role as JSON, for `gcloud iam roles create --file`."""
    return json.dumps(made, indent=2)
