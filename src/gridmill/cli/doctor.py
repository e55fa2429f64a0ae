"""The command `doctor` checks this machine, and the command `version` shows the version of Gridmill."""

import platform

import typer

from gridmill.cli.session import Json, emit, host_of, settings_of, show
from gridmill.cli.tables import table
from gridmill.version import __version__


def version(json: Json = False) -> None:
    """Print the version."""
    if json:
        return emit({"gridmill": __version__, "python": platform.python_version()})
    return print(f"gridmill {__version__}")


def doctor(context: typer.Context, json: Json = False) -> None:
    """Check this machine: Python, folders, disk, memory, control groups, packages. The exit code is 1 if a
    check fails.
    """
    settings = settings_of(context)
    checks = list(host_of(context).checks(settings))
    if json:
        emit([{"what": what, "well": well, "found": detail} for what, well, detail in checks])
    else:
        show(
            table("", "", "", rows=[("ok" if well else "NOT", what, detail) for what, well, detail in checks])
        )
    if not all(well for _, well, _ in checks):
        raise typer.Exit(1)
