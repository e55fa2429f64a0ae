"""Names that people give: they become parts of paths and ids."""

import re

from gridmill.errors import InputError

_NAME = re.compile("[a-z0-9][a-z0-9_-]*")


def check_name(what: str, name: str) -> None:
    """Raises InputError for what cannot be the name of a pipeline, job, resource, project or site."""
    if not _NAME.fullmatch(name):
        raise InputError(
            f"{name!r} cannot be the name of a {what}",
            hint="Use small letters, digits, - and _; begin with a letter or digit.",
        )
