"""The command `ssh` opens an SSH session on a rented machine."""

import os
import sys
from typing import Annotated

import typer

from gridmill.cli.session import host_of, settings_of


def ssh(
    context: typer.Context,
    lease: Annotated[str, typer.Argument(metavar="LEASE", help="Lease of the machine.", show_default=False)],
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[-- COMMAND...]", help="Command to run. Default: a shell.", show_default=False
        ),
    ] = None,
    forward: Annotated[
        list[str] | None,
        typer.Option(
            "-L",
            metavar="[HOST:]PORT:HOST:PORT",
            help="Forward a port of this machine to a port that the rented machine reaches. Repeatable.",
        ),
    ] = None,
) -> None:
    """Open a shell on a rented machine, or run a command on it, as root.

    The command uses the keys that Gridmill created for the machine, so it works only on the machine of the
    control node, and until the lease is closed. With -L and without a command, ports are forwarded until you
    press Ctrl-C. An SSH session is no contact to the control node and no running job: it does not extend the
    rental. `gridmill list leases` shows the leases.
    """
    words = [*host_of(context).ssh_words(settings_of(context), lease)]
    destination = words.pop()
    for text in forward or ():
        words += ["-o", "ExitOnForwardFailure=yes", "-L", text]
    if forward and not command:
        words.append("-N")
    elif sys.stdin.isatty() and not command:
        words.append("-t")
    sys.stdout.flush()
    os.execvp(words[0], [*words, destination, *(("--", *command) if command else ())])
