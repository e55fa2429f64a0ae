"""The models that a prediction can use."""

from dataclasses import dataclass

from gridmill.jobs.models import Card
from gridmill.model.artifact import Artifact


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A model that could be used, under the name that the declaration gives it."""

    name: str
    artifact: Artifact
    card: Card
