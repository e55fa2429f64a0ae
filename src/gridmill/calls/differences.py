"""How the settings of a client differ from those of the control node that works for it, for the user to
read."""

import os
import sys

from gridmill import __version__
from gridmill.calls.messages import Hello
from gridmill.settings import Settings, as_variables

_FOLDER = "GRIDMILL_ROOT"
_SECRET = "GRIDMILL_STORE"  # its URL may hold a password


def differences(settings: Settings, hello: Hello, *, stays: bool) -> tuple[str, ...]:
    """A line for each. Of a control node that was started to stay, the user chose the settings: there only
    what the client's environment sets counts as different."""
    ours = as_variables(settings)
    names = hello.chosen if stays else tuple(ours)
    told = [
        _line(name, hello.settings[name], ours[name])
        for name in names
        if name in ours and name in hello.settings and not _are_same(name, hello.settings[name], ours[name])
    ]
    if hello.version != __version__:
        told.append(f"Gridmill is {hello.version} here and {__version__} at the control node that is up")
    if hello.python != sys.prefix:
        told.append(
            f"Python is {hello.python} here and {sys.prefix} at the control node that is up:"
            " jobs of Gridmill's own kinds use the latter"
        )
    return tuple(told)


def _are_same(name: str, theirs: str, ours: str) -> bool:
    return theirs == ours or (name == _FOLDER and os.path.realpath(theirs) == os.path.realpath(ours))


def _line(name: str, theirs: str, ours: str) -> str:
    if name == _SECRET:
        return (
            f"{name} here is not that of the control node that is up: the control node's counts until it ends"
        )
    return (
        f"{name} is {theirs or 'not set'} here and {ours or 'not set'} at the control node that is up:"
        " the control node's counts until it ends"
    )
