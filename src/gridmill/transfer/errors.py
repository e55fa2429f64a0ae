"""The error for a bucket that refuses access until a person has corrected a setting."""

from gridmill.errors import InputError


class TransferRefusedError(InputError):
    """A key, a clock or a setting of the home, the farm or the bucket is wrong or missing."""
