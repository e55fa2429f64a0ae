"""The limits on the rates of requests to EC2.

Source: https://docs.aws.amazon.com/ec2/latest/devguide/ec2-api-throttling.html
"""

from collections.abc import Mapping
from typing import Any

from gridmill.testing.cloud.ec2.refusal import RefusalError
from gridmill.testing.cloud.token_bucket import TokenBuckets

_LISTS, _LISTS_OF_ALL, _CHANGES = (100, 20), (50, 10), (50, 5)
_OWN = {
    "CreateTags": (100, 10),
    "DeleteTags": (100, 10),
    "DeleteVolume": (100, 5),
    "RunInstances": (5, 2),
    "TerminateInstances": (100, 5),
}
_RESOURCES = {"RunInstances": (1000, 2), "TerminateInstances": (1000, 20)}
_SMALLER_FOR_ALL = {
    "DescribeInstances",
    "DescribeInstanceStatus",
    "DescribeSecurityGroups",
    "DescribeVolumes",
}


class Throttle:
    """Token buckets for each region and action: the capacity of a bucket, and the tokens per second that it
    gets."""

    def __init__(self) -> None:
        self._buckets = TokenBuckets()

    def take(self, region: str, action: str, parameters: Mapping[str, Any], now: float) -> None:
        """Takes a token for a request, and one for each instance that it launches or ends. Raises
        RefusalError if a bucket has too few tokens."""
        name, size, rate = _bucket(action, parameters)
        self._take(region, name, size, rate, 1, now)
        if action in _RESOURCES:
            count = parameters.get("MaxCount") or len(parameters.get("InstanceIds", ()))
            self._take(region, f"{action}/resources", *_RESOURCES[action], count, now)

    def _take(self, region: str, name: str, size: float, rate: float, count: int, now: float) -> None:
        if not self._buckets.take((region, name), now, size=size, per_second=rate, count=count):
            raise RefusalError("RequestLimitExceeded", "Request limit exceeded.", 503)


def _bucket(action: str, parameters: Mapping[str, Any]) -> tuple[str, float, float]:
    if action in _OWN:
        return action, *_OWN[action]
    if not action.startswith(("Describe", "Get")):
        return action, *_CHANGES
    narrowed = any(name in parameters for name in ("Filters", "MaxResults", "NextToken"))
    if action in _SMALLER_FOR_ALL and not narrowed:
        return f"{action}/all", *_LISTS_OF_ALL
    return action, *_LISTS
