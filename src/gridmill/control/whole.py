"""Whether a version's files are still there, looked at beside the ticks before a job is called unchanged."""

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

from gridmill.control.state import Control
from gridmill.errors import StorageError
from gridmill.model.artifact import Artifact
from gridmill.model.stored import FileTrouble, told


def why_broken(control: Control, version: Artifact, asker: str, *, then: Callable[[], None]) -> str | None:
    """What is wrong with the files of a version, in words, once for each time that `asker` asked; empty where
    nothing is. None: it is being looked at, the next tick is told, and `then` called before."""
    if not version.output.uri:
        return ""
    key = f"{version.id} for {asker}"
    if key not in control.looked:
        look = partial(control.storage.troubles, version)
        control.aside.do(f"files of {key}", look, partial(_keep, control, key, then))
    found = control.looked.pop(key, None)
    return _words(version, found) if found is not None else None


def _words(version: Artifact, found: "Future[tuple[FileTrouble, ...]]") -> str:
    try:
        troubles = found.result()
    except StorageError as error:
        return f"runs again: {error}"
    return f"runs again: of {version.id} {told(troubles)}" if troubles else ""


def _keep(
    control: Control, key: str, then: Callable[[], None], found: "Future[tuple[FileTrouble, ...]]"
) -> None:
    control.looked[key] = found
    then()
