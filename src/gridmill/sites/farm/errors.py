"""Errors that a farm answers instead of a result."""

import json

from gridmill.errors import GridmillError, StorageError, UnavailableError, from_body


class FarmStorageError(StorageError):
    """The storage of the farm cannot be read or written."""


def refusal(status: int, body: bytes) -> GridmillError:
    """The error in an answer; UnavailableError if the answer is not understood."""
    try:
        error = from_body(json.loads(body))
    except ValueError:
        return UnavailableError(f"the farm answers with HTTP status {status}")
    if isinstance(error, StorageError):  # the path is at the farm, so its place must not be shown as local
        return FarmStorageError(f"at the farm {error}", hint=error.hint)
    return error
