"""Whether a version's files are still there, looked at beside the ticks before a job is called unchanged."""

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial

from gridmill.control.state import Control
from gridmill.errors import StorageError
from gridmill.model.artifact import Artifact
from gridmill.model.stored import told
from gridmill.ports.storage import Storage


def why_broken(
    control: Control, versions: Iterable[Artifact], asker: str, *, then: Callable[[], None] = lambda: None
) -> str | None:
    """What is wrong with the files of the first version of which something is, in words, once for each time
    that `asker` asked; empty where nothing is. None: they are being looked at, the next tick is told, and
    `then` called before."""
    asked = tuple(one for one in versions if one.output.uri)
    if not asked:
        return ""
    key = f"{', '.join(one.id for one in asked)} for {asker}"
    if key not in control.looked:
        look = partial(_look, control.storage, asked)
        control.aside.do(f"files of {key}", look, partial(_keep, control, key, then))
    found = control.looked.pop(key, None)
    return found.result() if found is not None else None


def _look(storage: Storage, versions: Iterable[Artifact]) -> str:
    for one in versions:
        try:
            troubles = storage.troubles(one)
        except StorageError as error:
            return f"runs again: {error}"
        if troubles:
            return f"runs again: of {one.id} {told(troubles)}"
    return ""


def _keep(control: Control, key: str, then: Callable[[], None], found: "Future[str]") -> None:
    control.looked[key] = found
    then()
