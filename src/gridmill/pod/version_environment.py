"""`python -m gridmill.pod.version_environment FOLDER` builds the Python environment of the model in FOLDER,
and prints the path of its interpreter as JSON. Standard input has its requirements and its locked packages as
JSON.

A service runs this program when it loads a version with code of its own. The environment is the one in which
the version was trained, so that it often exists already.
"""

import json
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from gridmill.domain.serving import HOME_VARIABLE
from gridmill.errors import GridmillError
from gridmill.jobs.context import CODE
from gridmill.pod.launch import EVENTS_FD
from gridmill.pod.python_environments import Requirements, ready_environment
from gridmill.settings import read_settings

_TEXT = "requirements.txt"


def requirements_of_version(
    folder: Path, text: str, work: Path, locked: tuple[str, ...] = ()
) -> Requirements:
    """Return the requirements of the model in `folder`. Their file is the one in the code of the model that
    has this text, because it may refer to other files; otherwise, it is written to `work`."""
    for file in sorted((folder / CODE).rglob("*")):
        if file.is_file() and file.stat().st_size == len(text.encode()) and file.read_text("utf-8") == text:
            # the text may refer to other files of this version
            return Requirements(file=file, text=text, bundle=str(folder), locked=locked)
    file = work / _TEXT
    file.write_text(text, "utf-8")
    return Requirements(file=file, text=text, bundle=str(folder), locked=locked)


def main(folder: Path, text: str, locked: tuple[str, ...]) -> int:
    """Build the environment for the requirements `text` of the model, with the versions of packages in
    `locked`. Returns the exit code."""
    # the reports of the build, which are JSON lines, have no reader here
    os.dup2(os.open(os.devnull, os.O_WRONLY), EVENTS_FD)
    home = Path(os.environ.get(HOME_VARIABLE) or read_settings().home)
    try:
        with TemporaryDirectory(prefix="gridmill-requirements-") as work:
            wanted = requirements_of_version(folder, text, Path(work), locked)
            python = ready_environment(home, wanted) / "bin" / "python"
    except GridmillError as error:
        print(json.dumps({"error": error.message, "hint": error.hint}))
        return 1
    print(json.dumps({"python": str(python)}))
    return 0


if __name__ == "__main__":
    given = json.load(sys.stdin)
    sys.exit(main(Path(sys.argv[1]), given["requirements"], tuple(given["locked"])))
