"""The versions of a model that a replica offers, and the choice of the version that answers a request."""

import random
from bisect import bisect
from collections.abc import Sequence
from itertools import accumulate

from gridmill.domain.frozen import dataclass
from gridmill.jobs.features import Floats
from gridmill.serving.batching import Batcher
from gridmill.serving.drift_counter import DriftCounter
from gridmill.serving.errors import UnknownPathError
from gridmill.serving.keyed_features import KeyedFeatures
from gridmill.serving.served_model import ServedModel


@dataclass(frozen=True, slots=True, kw_only=True)
class HostedModel:
    """A loaded version with its batcher. `service` is the name of the service, which is also the name of the
    model in the Open Inference Protocol. `keyed` computes the contextual features of requests; it is None if
    requests send all features. `drift` counts rows in the bins of the training statistics; it is None if the
    version has none."""

    service: str
    model: ServedModel
    batcher: Batcher
    keyed: KeyedFeatures | None = None
    drift: DriftCounter | None = None

    def close(self) -> None:
        """Compute no more features and batches."""
        self.batcher.close()
        if self.keyed is not None:
            self.keyed.close()

    async def predict(self, inputs: Floats) -> Floats:
        """Return the output of the model. Raises RequestError."""
        if not len(inputs):
            return self.model.no_rows
        predicted = await self.batcher.predict(inputs)
        self.observe(inputs, predicted)
        return predicted

    def observe(self, inputs: Floats, predicted: Floats) -> None:
        """Count the rows and predictions of a request for the drift of the version."""
        if self.drift is not None:
            self.drift.add(inputs, predicted)


class Versions:
    """The versions of a service. Requests that name no version are divided by weight."""

    def __init__(self, hosted: Sequence[HostedModel]) -> None:
        self.hosted = tuple(hosted)
        self._by_name = {one.model.version: one for one in hosted} | {one.model.label: one for one in hosted}
        shared = [one for one in hosted if one.model.weight > 0] or list(hosted)
        self._shared = tuple(shared)
        self._bounds = list(accumulate(max(one.model.weight, 1e-12) for one in shared))

    def choose(self, name: str = "") -> HostedModel:
        """Return the version with this name or label, or a version by weight if the name is empty. Raises
        UnknownPathError."""
        if name:
            return self._named(name)
        if len(self._shared) == 1:
            return self._shared[0]
        # the choice divides requests, and no secret depends on it
        return self._shared[bisect(self._bounds, random.random() * self._bounds[-1])]

    def _named(self, name: str) -> HostedModel:
        if name not in self._by_name:
            known = ", ".join(one.model.version for one in self.hosted)
            raise UnknownPathError(f"there is no version {name!r}", hint=f"The versions are: {known}.")
        return self._by_name[name]

    @property
    def default(self) -> HostedModel:
        """The version that answers most requests that name no version."""
        return max(self._shared, key=lambda one: one.model.weight)
