"""Runs the command line and turns every error into a message without a traceback."""

import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from gridmill.cli.app import app
from gridmill.cli.format import for_terminal
from gridmill.cli.invocation import Invocation
from gridmill.errors import TABLE, GridmillError, InternalError, to_body


def run(given: Sequence[str], invocation: Invocation) -> None:
    """Run the command line and exit with 0, or with the exit code in the table of errors (130 if it was
    interrupted)."""
    warnings.formatwarning = _plain_warning
    try:
        app(given, prog_name="gridmill", obj=invocation)
    except GridmillError as error:
        sys.exit(_explain(error, as_json="--json" in given))
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # the reader of the pipe has ended: a flush at the exit would fail again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as error:  # noqa: BLE001  the outermost handler
        sys.exit(_explain(_defect(error), as_json="--json" in given))


def _plain_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    return f"warning: {message}\n"


def _explain(error: GridmillError, *, as_json: bool) -> int:
    if as_json:
        import json

        print(json.dumps(to_body(error)))
    print(for_terminal(f"error: {error}", sys.stderr), file=sys.stderr)
    if error.hint:
        print(for_terminal(f"  {error.hint}", sys.stderr), file=sys.stderr)
    return TABLE[error.code].exit_code


def _defect(error: Exception) -> InternalError:
    """Write the traceback to a file, and return an error that names the file."""
    import tempfile  # imported here, because these modules load a dozen modules that hardly any command needs
    import time
    import traceback

    text = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {sys.argv}\n{''.join(traceback.format_exception(error))}\n"
    # read from the environment, because the settings themselves may be invalid
    home = Path(os.environ.get("GRIDMILL_HOME") or Path.home() / ".gridmill")
    for folder in (home, Path(tempfile.gettempdir())):
        path = folder / "gridmill-errors.log"
        try:
            with path.open("a") as log:
                log.write(text)
        except OSError:
            continue
        return InternalError(
            f"this is an internal error of Gridmill ({type(error).__name__})",
            hint=f"Please report the error with the file {path}.",
        )
    return InternalError(f"this is an internal error of Gridmill: {error!r}")
