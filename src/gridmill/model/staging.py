"""How what jobs at a farm read gets there, and what they make gets home."""

from enum import StrEnum


class Staging(StrEnum):
    """`direct`: through the connection to the farm. `export`: by objects of a bucket that both sides reach,
    each of them removed once it was used. `shared`: by a bucket in which what went there is kept, for other
    jobs and other farms."""

    DIRECT = "direct"
    EXPORT = "export"
    SHARED = "shared"
