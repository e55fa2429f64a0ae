"""The baseline: repeat a value that is known, or say what is usual. Every real model must beat it."""

from difflib import get_close_matches

import numpy as np

from gridmill.errors import InputError
from gridmill.jobs.context import JobContext
from gridmill.jobs.training.fitted import Fitted
from gridmill.jobs.training.frame import Frame
from gridmill.model.training import Objective, TrainingSpec


def fit(frame: Frame, spec: TrainingSpec, context: JobContext) -> Fitted:
    """Regression: an input and, where it is missing, the training mean. Classification: training shares."""
    target = frame.target[frame.rows["train"]]
    if frame.objective == Objective.CLASSIFICATION:
        if spec.repeat is not None:
            raise InputError(
                "a naive classifier repeats nothing: it says the classes' shares", place="repeat"
            )
        shares = np.bincount(target.astype(int), minlength=len(frame.classes)) / len(target)
        return Fitted(constant=tuple(float(share) for share in shares))
    labels = len(frame.subject.labels)
    return Fitted(
        presents=frame.present_inputs if spec.repeat is None else (_input(frame, spec.repeat),) * labels,
        constant=tuple(float(mean) for mean in np.atleast_1d(target.mean(axis=0))),
        options={"repeat": spec.repeat},
    )


def _input(frame: Frame, name: str) -> int:
    if name in frame.names:
        return frame.names.index(name)
    near = get_close_matches(name, frame.names, n=1)
    hint = f"Did you mean {near[0]!r}?" if near else f"Numeric features: {', '.join(frame.names)}."
    raise InputError(f"there is no numeric feature {name!r} to repeat", hint=hint, place="training.repeat")
