"""The Python client: the verbs of Gridmill as methods, on whichever control node there is."""

import os
import sys
from collections.abc import Callable
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from gridmill.errors import InputError, InternalError
from gridmill.model.pipeline import Pipeline
from gridmill.model.view import ControlView
from gridmill.sdk.advising import AdviceVerbs
from gridmill.sdk.arguments import checked
from gridmill.sdk.backfills import BackfillVerbs
from gridmill.sdk.dial import Dialled, dial_home, dial_url, home_settings
from gridmill.sdk.loaded import Version
from gridmill.sdk.lookup import Noun, find_noun, read_noun
from gridmill.sdk.resources import ResourceVerbs
from gridmill.sdk.schedules import ScheduleVerbs
from gridmill.sdk.sharing import ShareVerbs
from gridmill.sdk.sinks import SinkVerbs
from gridmill.sdk.sites import SiteVerbs
from gridmill.sdk.versions import VersionVerbs
from gridmill.settings import Settings


@checked
def connect(
    home: str | Path | None = None,
    url: str | None = None,
    token: str | None = None,
    *,
    embed: bool = True,
    reading: bool = False,
) -> "Client":
    """A client on the control node that is up for `home` (default: GRIDMILL_HOME), or at `url`.

    With none up, one is started (unless `embed` is false): a process of its own that other clients of the
    home share, and that ends with the last of them. With `reading` the records are read instead, and nothing
    is started or changed.
    Raises UnavailableError, HomeInUseError, StorageError.
    """
    settings = home_settings(home)
    attends = set[str]()
    client = Client(settings, dial=_dialler(settings, url, token, embed, reading, attends), attends=attends)
    _register_in_notebook()
    return client


@checked
def load(
    reference: str, *, home: str | Path | None = None, url: str | None = None, token: str | None = None
) -> Version:
    """A version to read, with or without a control node that is up: `load("weather/features").to_pandas()`.

    `reference` is `pipeline/job` for the latest version, `pipeline/job@3`, or `pipeline/job@prod`. Nothing is
    started or changed. Raises NotFoundError, UnavailableError.
    """
    with connect(home, url, token, reading=True) as client:
        return client.load(reference)


def _dialler(
    settings: Settings, url: str | None, token: str | None, embed: bool, reading: bool, attends: set[str]
) -> Callable[[], Dialled]:
    if url is not None:
        return lambda: dial_url(url, token, settings)
    tries, process = count(), os.getpid()

    def dial() -> Dialled:
        if settings.fault and next(tries):
            raise InternalError("the control node was killed where GRIDMILL_FAULT says")
        ours = attends if os.getpid() == process else ()  # a child that was forked waits for none of them
        return dial_home(settings, embed=embed, reading=reading, attends=ours)

    return dial


def _register_in_notebook() -> None:
    if "IPython" in sys.modules:
        import_module("gridmill.sdk.notebook").register()


_RENAMED = {"export_project": "backup", "import_project": "restore"}


class RenamedError(InputError, AttributeError):
    """A method has another name now; `hasattr` finds nothing under the former one."""


class Client(
    AdviceVerbs, ResourceVerbs, SiteVerbs, ScheduleVerbs, BackfillVerbs, VersionVerbs, SinkVerbs, ShareVerbs
):
    """Use as a context manager, or `close()`. Every method raises GridmillErrors only.

    `grid` gives the plain use cases (gridmill.ports.grid). Where a run is asked for, a pipeline's name
    means its newest run.
    """

    if not TYPE_CHECKING:  # for type checkers there is no such method

        def __getattr__(self, name: str) -> NoReturn:
            if name in _RENAMED:
                raise RenamedError(f"`{name}` is now `{_RENAMED[name]}`")
            raise AttributeError(f"a Client has no attribute {name!r}")

    def control(self) -> ControlView:
        """The control node."""
        return self.grid.control()

    def show(self, noun: Noun | str, name: str = "") -> Any:  # noqa: ANN401  its class follows from `noun`
        """One noun: `show("model", "weather/lstm")`, `show("job", "weather-1/train")`."""
        return find_noun(self.grid, read_noun(noun), name)

    def list_pipelines(self) -> tuple[Pipeline, ...]:
        """Pipelines, by name, as they were applied last, or else as they were run last."""
        return self.grid.pipelines()

    def remove_pipeline(self, name: str) -> None:
        """Forget a pipeline; its runs and artifacts stay."""
        self.grid.remove_pipeline(name)
