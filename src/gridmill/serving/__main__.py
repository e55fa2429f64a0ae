"""`python -m gridmill.serving FOLDER` runs the parent process of the service in a folder."""

import argparse
import logging
import signal
import sys
from pathlib import Path

from gridmill.errors import TABLE, GridmillError, explained
from gridmill.process_log import BoundedHandler
from gridmill.serving.parent import Parent


def main() -> None:
    """Run the parent process. The exit code of an error is that of the error table."""
    parser = argparse.ArgumentParser(
        prog="python -m gridmill.serving",
        description="Serve the model versions that FOLDER/service.json names, until SIGTERM.",
    )
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    logging.basicConfig(
        level=logging.WARNING,
        handlers=[BoundedHandler()],
        format="%(asctime)s service: %(levelname)s %(message)s",
    )
    # before the loop runs, a changed order needs no signal: the loop reads the order first
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        Parent(folder).run()
    except GridmillError as error:
        print(f"error: {explained(error)}", file=sys.stderr)
        sys.exit(TABLE[error.code].exit_code)


if __name__ == "__main__":
    main()
