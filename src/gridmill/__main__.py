"""The program `gridmill`: it prints a stored help text, or runs the command line."""

import contextlib
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gridmill.cli.help import stored_help

if TYPE_CHECKING:
    from gridmill.sdk.client import Client


def program() -> None:
    """The entry point of `gridmill`: it runs `main` and then ends the process without the cleanup of the
    interpreter, which would take longer than many commands. All clients were closed before the process ends
    in this way."""
    code: object = 0
    try:
        text = stored_help(sys.argv[1:], os.environ)
        if text is None:
            main()
        else:
            print(text, end="")
    except SystemExit as end:
        code = end.code
    if isinstance(code, str):
        print(code, file=sys.stderr)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def main(arguments: Sequence[str] | None = None, *, context: "Client | None" = None) -> None:
    """Runs the command and exits with 0 or with the exit code of the error table (130 if interrupted).

    If `context` is set, every command uses this client and does not search for a control node.
    """
    from gridmill.bootstrap.host import ProgramHost
    from gridmill.cli.invocation import Invocation
    from gridmill.cli.main import run

    given = list(sys.argv[1:] if arguments is None else arguments)
    run(given, Invocation(host=ProgramHost(), client=context))


if __name__ == "__main__":
    program()
