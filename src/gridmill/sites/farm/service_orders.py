"""Rewrites the order of a service for the pod at a farm: the folders of its versions, and the socket at which
the service listens."""

from dataclasses import replace
from pathlib import Path

from gridmill.domain.farm_protocol import SERVICE_SOCKET, FarmStatus
from gridmill.domain.service_settings import DEFAULT_HOST
from gridmill.domain.serving import ServiceOrder
from gridmill.errors import InputError
from gridmill.sites.attempt_inputs import version_folder_uri


def check_serves(status: FarmStatus) -> None:
    """Raises InputError if no services can run at the farm."""
    if not status.serves:
        raise InputError(
            "services do not run at this farm: its Gridmill is older, or it runs jobs by a cluster",
            hint="Upgrade Gridmill at the farm, or use a farm that runs jobs itself (--site local).",
        )


def order_at_farm(order: ServiceOrder, home_root: Path, farm_root: str, output_uri: str) -> ServiceOrder:
    """Returns the order in the form that the pod at the farm needs. The service listens at a socket in the
    output folder of its attempt, because every user of the farm could connect to a port. Raises
    InputError."""
    versions = tuple(
        replace(one, folder=f"{farm_root}/{version_folder_uri(home_root, one)}") for one in order.versions
    )
    if order.calibrates:
        return replace(order, versions=versions)
    return replace(
        order,
        versions=versions,
        host=DEFAULT_HOST,
        port=0,
        socket=f"{farm_root}/{output_uri}/{SERVICE_SOCKET}",
    )
