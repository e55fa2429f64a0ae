"""Where a pipeline comes from: the folder that its name belongs to."""

from gridmill.model.noun import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The pipeline `name` is submitted from `folder` of the machine `host` (empty: it is not known).

    Its tables and versions are found by its name alone: a pipeline of that name from another folder would
    write into them.
    """

    name: str
    folder: str
    host: str = ""
