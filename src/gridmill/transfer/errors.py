"""The error for a bucket that refuses access until a person has corrected something."""

from gridmill.errors import InputError


class TransferRefusedError(InputError):
    """A key, a clock or a setting is wrong, or not there: home's, the farm's or the bucket's."""
