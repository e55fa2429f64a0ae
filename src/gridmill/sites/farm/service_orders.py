"""Rewrites the order of a service for the pod at a farm: the folders of its versions and of their views, and
the socket at which the service listens."""

from dataclasses import replace
from pathlib import Path

from gridmill.domain.farm_protocol import SERVICE_SOCKET, FarmStatus
from gridmill.domain.service_features import SENT_FOLDER, SentView, ViewMode, ViewOrder
from gridmill.domain.service_log import LOG_FOLDER
from gridmill.domain.service_settings import DEFAULT_HOST
from gridmill.domain.serving import ServedVersion, ServiceOrder
from gridmill.errors import InputError
from gridmill.sites.attempt_inputs import features_uri, folder_uri, version_folder_uri


def check_serves(status: FarmStatus, order: ServiceOrder) -> None:
    """Raises InputError if the service cannot run at the farm, or if its requests cannot be logged there."""
    if not status.serves:
        raise InputError(
            "services do not run at this farm: its Gridmill is older, or it runs jobs by a cluster",
            hint="Upgrade Gridmill at the farm, or use a farm that runs jobs itself (--site local).",
        )
    if order.request_log is not None and not status.logs:
        raise InputError(
            f"the requests of service {order.name!r} cannot be logged at this farm: its Gridmill is older",
            hint="Upgrade Gridmill at the farm, or turn the log off: gridmill update service "
            f"{order.name} --log-requests 0",
        )


def order_at_farm(order: ServiceOrder, home_root: Path, farm_root: str, output_uri: str) -> ServiceOrder:
    """Returns the order in the form that the pod at the farm needs. The service, or the replica of a
    calibration, listens at a socket in the output folder of its attempt, because every user of the farm
    could connect to a port. The views are in this folder too. Raises InputError."""

    def at_farm(one: ServedVersion) -> ServedVersion:
        folder = f"{farm_root}/{version_folder_uri(home_root, one)}"
        if not one.features:
            return replace(one, folder=folder)
        features = f"{farm_root}/{features_uri(home_root, one)}"
        return replace(one, folder=folder, features=features, view=_view(farm_root, output_uri, one.view))

    log = order.request_log
    if log is not None:
        log = replace(log, folder=f"{farm_root}/{output_uri}/{LOG_FOLDER}", is_transferred=True)
    return replace(
        order.changed(at_farm),
        request_log=log,
        host=DEFAULT_HOST,
        port=0,
        socket=f"{farm_root}/{output_uri}/{SERVICE_SOCKET}",
    )


def view_at_farm(
    view: ViewOrder, home_root: Path, farm_root: str, output_uri: str, sent: SentView | None, files_uri: str
) -> ViewOrder:
    """Returns the desired content of a view in the form that the pod at the farm needs. `sent` describes the
    files at `files_uri`; it is None while the home has no complete view."""
    definition = folder_uri(home_root, view.definition, "the definition of the features")
    return replace(
        view,
        definition=f"{farm_root}/{definition}",
        folder=_view(farm_root, output_uri, view.folder),
        root=farm_root,
        mode=ViewMode.RECEIVED,
        received=sent,
        files=f"{farm_root}/{files_uri}",
    )


def sent_files_uri(home_root: Path, view: str, attempt_id: str) -> str:
    """Returns the URI of the files of a view at the farm. Each attempt has its own files, because attempts
    can receive different states of the view."""
    uri = folder_uri(home_root, view, "the view")
    service, _, name = uri.rpartition("/")
    return f"{service}/{SENT_FOLDER}/{attempt_id}/{name}"


def _view(farm_root: str, output_uri: str, view: str) -> str:
    return f"{farm_root}/{output_uri}/{Path(view).name}"
