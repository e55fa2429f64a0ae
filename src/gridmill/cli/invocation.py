"""The invocation of a command: the host of the program, and the options that precede the command's name."""

from pathlib import Path
from typing import TYPE_CHECKING

from gridmill.domain.frozen import dataclass

if TYPE_CHECKING:
    import typer

    from gridmill.ports.host import Host
    from gridmill.sdk.client import Client


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """`client`: what tests pass instead of a control node that is looked for."""

    host: "Host"
    client: "Client | None" = None
    home: Path | None = None
    url: str | None = None


def invocation(context: "typer.Context") -> Invocation:
    """That of the command of this context."""
    given = context.obj
    assert isinstance(given, Invocation)
    return given
