"""The commands for the API keys of services."""

import typer

from gridmill.cli.services import check_in_effect, wait_until_in_effect
from gridmill.cli.session import emit, print_error, session
from gridmill.errors import InputError


def add_key(context: typer.Context, name: str, as_json: bool) -> None:
    """Make an API key of a service, and print its value, which is shown only once. If the service has
    answered requests without a key until now, wait until it refuses them."""
    service, key = _service_and_key(name)
    with session(context) as client:
        made = client.add_service_key(service, key)
        if as_json:
            emit(made)
        else:
            print(made.key, flush=True)
            print_error(f"this is the API key {key} of service {service}; it is not shown again")
        view = client.service(service)
        if view.service.is_meant_to_run and view.service.settings.require_keys:
            view = wait_until_in_effect(client, view)
            check_in_effect(view, waited=True)
    if not view.service.settings.require_keys:
        print_error(
            f"service {service} does not require API keys: gridmill update service {service} --require-keys"
        )


def remove_key(context: typer.Context, name: str, as_json: bool) -> None:
    """Delete an API key of a service, and print what was done."""
    service, key = _service_and_key(name)
    with session(context) as client:
        client.remove_service_key(service, key)
    return emit({"removed": name}) if as_json else print(f"API key {key} of service {service} removed")


def _service_and_key(name: str) -> tuple[str, str]:
    service, found, key = name.partition("/")
    if not (service and found and key):
        raise InputError(
            f"{name!r} does not name a service and a key", hint="gridmill add key SERVICE/NAME", place="NAME"
        )
    return service, key
