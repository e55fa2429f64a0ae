"""The address that a farm announced when it last started. The address is not secret, and each join line of
the farm contains it."""

import os
from pathlib import Path

from gridmill.codec import decode, encode
from gridmill.errors import NotFoundError
from gridmill.ports.host import FarmAddress
from gridmill.settings import Settings


def note_address(settings: Settings, address: FarmAddress) -> FarmAddress:
    """Stores the address, so that later join lines can contain it."""
    path = _path(settings)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_bytes(encode(address))
    draft.rename(path)
    return address


def listening(settings: Settings) -> FarmAddress:
    """Returns the address that the farm in this home announced last. Raises NotFoundError if this home has
    no farm."""
    try:
        return decode(_path(settings).read_bytes(), FarmAddress)
    except OSError as error:
        raise NotFoundError(
            f"there is no farm in {settings.home}",
            hint="`gridmill up --light --listen HOST:PORT` starts a farm; GRIDMILL_HOME sets its folder.",
        ) from error


def _path(settings: Settings) -> Path:
    return settings.home / "farm" / "listening.json"
