"""`python -m gridmill.serving FOLDER` runs the parent process of the service in a folder, or the calibration
that the order in the folder requests."""

import argparse
import logging
import signal
import sys
from pathlib import Path

from gridmill.errors import TABLE, GridmillError, explained
from gridmill.process_log import BoundedHandler
from gridmill.serving.calibration import write_calibration
from gridmill.serving.parent import Parent
from gridmill.serving.service_files import is_calibration


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
        if is_calibration(folder):
            return write_calibration(folder.resolve())
        Parent(folder).run()
    except GridmillError as error:
        print(f"error: {explained(error)}", file=sys.stderr)
        sys.exit(TABLE[error.code].exit_code)


if __name__ == "__main__":
    main()
