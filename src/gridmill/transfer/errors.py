"""What a bucket does not let out or in until a person has set something right."""

from gridmill.errors import InputError


class RefusedError(InputError):
    """A key, a clock or a setting is wrong, or not there: home's, the farm's or the bucket's."""
