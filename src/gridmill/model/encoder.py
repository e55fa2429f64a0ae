"""Declaration of what is fitted on the training rows of a dataset, and then applied to all."""

from enum import StrEnum

from gridmill.errors import InputError
from gridmill.model.noun import dataclass


class Method(StrEnum):
    """What an encoder makes of a column.

    Scalers: `standard` (mean 0, standard deviation 1), `minmax` (0 to 1), `robust` (median 0, interquartile
    range 1). For missing values: `mean`, `median`, `most_frequent`, `constant`. For categories: `onehot`,
    `ordinal`, `frequency` (its share of the training rows), `target` (the mean label).
    """

    STANDARD = "standard"
    MINMAX = "minmax"
    ROBUST = "robust"
    MEAN = "mean"
    MEDIAN = "median"
    MOST_FREQUENT = "most_frequent"
    CONSTANT = "constant"
    ONEHOT = "onehot"
    ORDINAL = "ordinal"
    FREQUENCY = "frequency"
    TARGET = "target"


SCALERS = (Method.STANDARD, Method.MINMAX, Method.ROBUST)
IMPUTERS = (Method.MEAN, Method.MEDIAN, Method.MOST_FREQUENT, Method.CONSTANT)
CATEGORICAL = (Method.ONEHOT, Method.ORDINAL, Method.FREQUENCY, Method.TARGET)


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoder:
    """`columns` encoded by `method`, with numbers that are fitted on the training rows and kept.

    Encoders apply in their order. Scalers and those for missing values replace the column; labels that are
    later values of a scaled column are scaled with it. Encoders of categories make `carrier_target`,
    `carrier_ordinal`, `carrier_frequency` or one column per category (`carrier_UA`: true or false; of the
    `most` frequent ones), and the column itself goes, unless `keep`. What training never saw becomes the mean
    label, -1, 0, or false in all columns.

    `target` counts only labels of training rows that were known before a row's own time, so that no row sees
    its own; `smoothing` is how many rows the mean of all weighs. `constant` takes `value`.
    """

    columns: tuple[str, ...]
    method: Method
    smoothing: float = 20.0
    most: int = 32
    keep: bool = False
    value: float | None = None

    def check(self) -> None:
        """Raise InputError for no columns, and for a value that is missing or goes with another method."""
        if not self.columns:
            raise InputError("names no columns", place="encoders.columns")
        if (self.value is None) == (self.method == Method.CONSTANT):
            rule = "needs `value`" if self.value is None else "takes no `value`: it is for `constant`"
            raise InputError(f"`method: {self.method}` {rule}", place="encoders.value")
        if self.smoothing < 0:
            raise InputError("`smoothing` must not be negative", place="encoders.smoothing")
        if self.most < 1:
            raise InputError("`most` must be 1 or more", place="encoders.most")
