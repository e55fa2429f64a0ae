"""What client and control node say of themselves when a connection begins, and the envelope of a call."""

from collections.abc import Mapping
from dataclasses import field

from gridmill.model.noun import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """The first frame of every connection.

    The first connection of a client has no `client`: it says who the client is, and stays open for as long as
    the client lives. Further ones name what that one was given. `settings` are the client's, as text by
    variable, `chosen` those of them that its environment sets. `attends` are runs that the client waits for
    and that another control node was to stop when it goes.
    """

    client: str = ""
    command: str = ""
    version: str = ""
    python: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    chosen: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    attends: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """The answer: the client's name for further connections. `stays`: the control node was started to stay
    (`gridmill up`). `notices` are for the user to read."""

    client: str
    pid: int
    stays: bool
    notices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A use case by its name, with the names of its arguments, whose values follow in parts of their own.
    `attend`: the run that it starts ends when the client goes. `key` is what the client knows that run by;
    `again`: it asked for it before, and got no answer."""

    name: str
    arguments: tuple[str, ...] = ()
    attend: bool = False
    key: str = ""
    again: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """What is sent over a client's first connection after the welcome. The client says `bye` (and gets one
    word back if the control node `stays`), `release` when it starts no more work, or `attend` with a run; the
    control node sends warnings."""

    bye: bool = False
    release: bool = False
    attend: str = ""
    stays: bool = False
    warning: str = ""
