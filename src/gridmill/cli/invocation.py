"""The invocation of a command: the host of the program, and the options before the name of the command."""

from pathlib import Path
from typing import TYPE_CHECKING

from gridmill.domain.frozen import dataclass

if TYPE_CHECKING:
    import typer

    from gridmill.ports.host import Host
    from gridmill.sdk.client import Client


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """Tests set `client`, so that they need no running control node."""

    host: "Host"
    client: "Client | None" = None
    home: Path | None = None
    url: str | None = None


def invocation(context: "typer.Context") -> Invocation:
    """Return the invocation to which this context belongs."""
    given = context.obj
    assert isinstance(given, Invocation)
    return given
