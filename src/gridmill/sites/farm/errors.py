"""Converts error responses of a farm into exceptions."""

import json

from gridmill.errors import GridmillError, StorageError, UnavailableError, from_body


class FarmStorageError(StorageError):
    """The error that the farm cannot read or write its storage."""


def refusal(status: int, body: bytes) -> GridmillError:
    """Returns the exception for an error response of the farm, or UnavailableError if the response is not
    understood."""
    try:
        error = from_body(json.loads(body))
    except ValueError:
        return UnavailableError(f"the farm answers with HTTP status {status}")
    if isinstance(error, StorageError):  # the path is at the farm, so its place must not be shown as local
        return FarmStorageError(f"at the farm {error}", hint=error.hint)
    return error
