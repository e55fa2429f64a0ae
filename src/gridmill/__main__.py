"""The program `gridmill`: prints a stored help text, or else runs the command line."""

import contextlib
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gridmill.cli.help import stored_help

if TYPE_CHECKING:
    from gridmill.sdk.client import Client


def program() -> None:
    """The entry point `gridmill`: run main, then end the process without the interpreter's cleanup, which
    would take longer than many commands. All clients are closed by then."""
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
    """Run the command and exit with 0 or the exit code of the error table (130 if interrupted).

    `context` is a client that every command uses instead of finding a control node.
    """
    from gridmill.bootstrap.host import ProgramHost
    from gridmill.cli.invocation import Invocation
    from gridmill.cli.main import run

    given = list(sys.argv[1:] if arguments is None else arguments)
    run(given, Invocation(host=ProgramHost(), client=context))


if __name__ == "__main__":
    program()
