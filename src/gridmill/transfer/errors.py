"""The error for a bucket that refuses access until a person has corrected something."""

from gridmill.errors import InputError


class TransferRefusedError(InputError):
    """A key, a clock or a setting of home, the farm or the bucket is wrong or missing."""
