"""A request to the simulated Compute Engine that was read and is allowed."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

from gridmill.domain.frozen import dataclass
from gridmill.testing.cloud.gce import catalogue
from gridmill.testing.cloud.gce.records import Labels, Operation
from gridmill.testing.cloud.gce.refusal import forbidden, invalid, not_found, not_simulated
from gridmill.testing.cloud.gce.world import GceWorld
from gridmill.testing.cloud.google_accounts import PERMITTED_BY_ANY, Principal, is_permitted
from gridmill.testing.cloud.google_accounts import Token as AccessToken

_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_LABEL_KEY, _LABEL_VALUE = re.compile(r"[a-z][a-z0-9_-]{0,62}"), re.compile(r"[a-z0-9_-]{0,63}")
_MOST_LABELS = 64
_COMPUTE = "https://www.googleapis.com/auth/compute"
_READ_ONLY = ("https://www.googleapis.com/auth/compute.readonly",)
_API = "https://www.googleapis.com/compute/v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A request. `place` has the names in its path by kind, such as `zone`. `now` is the time at which it has
    its effect, and `as_of` the time whose state a list shows."""

    world: GceWorld
    action: str
    place: Mapping[str, str]
    query: Mapping[str, str]
    body: Mapping[str, Any]
    caller: Principal
    token: AccessToken
    now: float
    as_of: float

    # where

    @property
    def zone(self) -> str:
        """Returns the zone of the request. Raises GoogleRefusalError if there is no such zone."""
        zone = self.place["zone"]
        if zone not in self.zones():
            raise not_found(f"projects/{self.world.project}/zones/{zone}")
        return zone

    @property
    def region(self) -> str:
        """Returns the region of the request. Raises GoogleRefusalError if there is no such region."""
        region = self.place["region"]
        if region not in self.regions():
            raise not_found(f"projects/{self.world.project}/regions/{region}")
        return region

    def regions(self) -> list[str]:
        """Returns the regions that the project can use."""
        gone = self.world.faults.regions_gone
        return [one for one in catalogue.REGIONS if one not in gone]

    def zones(self) -> list[str]:
        """Returns the zones that the project can use."""
        return [zone for region in self.regions() for zone in catalogue.REGIONS[region]]

    def unreachable(self, scopes: Sequence[str]) -> list[str]:
        """Returns the scopes, such as `zones/us-central1-a`, of regions that are down."""
        down = self.world.faults.regions_down
        return [one for one in scopes if any(one.partition("/")[2].startswith(region) for region in down)]

    def link(self, path: str) -> str:
        """Returns the URL of a resource of the project, such as `zones/us-central1-a`."""
        return f"{_API}/projects/{self.world.project}/{path}"

    def require(self, permission: str, resource: str) -> None:
        """Raises GoogleRefusalError if the caller has no permission for a resource of the project."""
        full = f"projects/{self.world.project}/{resource}".rstrip("/")
        permitted = is_permitted(self.caller, permission, full) or self._is_permitted_here(
            permission, resource
        )
        if not permitted or not _has_scope(self.token, permission):
            raise forbidden(permission, full)

    def _is_permitted_here(self, permission: str, resource: str) -> bool:
        """Returns whether the policy of the resource itself gives the caller a permission, in addition to the
        policy of the project.

        Source: https://docs.cloud.google.com/iam/docs/resource-hierarchy-access-control
        """
        member = f"serviceAccount:{self.caller.email}"
        return any(
            member in binding["members"] and permission in self.world.roles.get(binding["role"], ())
            for binding in self.world.policies.get(resource, ())
        )

    # what

    def allow_only(self, *names: str) -> None:
        """Raises GoogleRefusalError if the request has a field that is not named here."""
        check_fields(self.body, "resource", names)

    def new_name(self, default: str = "") -> str:
        """Returns the name of a resource to create."""
        return checked_name(self.body.get("name", default), "resource.name")

    def labels(self, given: object) -> Labels:
        """Returns labels.

        Source: https://cloud.google.com/compute/docs/labeling-resources#restrictions
        """
        if given is None:
            return ()
        if not isinstance(given, dict) or len(given) > _MOST_LABELS:
            raise invalid("resource.labels", given, f"There can be at most {_MOST_LABELS} labels.")
        for key, value in given.items():
            if not _LABEL_KEY.fullmatch(key) or not _LABEL_VALUE.fullmatch(str(value)):
                raise invalid("resource.labels", f"{key}={value}", "The label is invalid.")
        return tuple((key, str(value)) for key, value in given.items())

    def begin(
        self,
        kind: str,
        scope: str,
        target: str,
        target_id: str,
        *,
        seconds: float = 0.0,
        error: tuple[str, str, int] | None = None,
        details: Sequence[dict[str, Any]] = (),
    ) -> dict[str, Any]:
        """Stores a new operation of the caller, and returns it as an answer. The answer to a change always
        has the status RUNNING."""
        operation = self.world.begin(
            kind,
            scope,
            target,
            target_id,
            self.now,
            user=self.caller.email,
            request_id=self.query.get("requestId", ""),
            seconds=seconds,
            error=error,
            details=details,
        )
        return operation_shape(self, operation, is_done=False)


Action = Callable[[Call], dict[str, Any]]


def checked_name(value: object, field: str) -> str:
    """Returns a name of RFC 1035. Raises GoogleRefusalError."""
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise invalid(field, value, f"Must be a match of regex '(?:{_NAME.pattern})'")
    return value


def check_fields(given: object, field: str, names: Sequence[str]) -> None:
    """Raises GoogleRefusalError if an object has a field that is not named here."""
    if not isinstance(given, Mapping):
        raise invalid(field, given, "An object is expected.")
    for name in given:
        if name not in names:
            raise not_simulated(f"the field {field}.{name}")


def last_part(value: object, field: str) -> str:
    """Returns the name at the end of a full or partial URL."""
    if not isinstance(value, str) or not value:
        raise invalid(field, value, "The URL is malformed.")
    return value.rpartition("/")[2]


def moment(seconds: float) -> str:
    """Returns a time in the format of RFC 3339."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "-00:00")


def fingerprint(value: object) -> str:
    """Returns a text that changes with a value."""
    return sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


def operation_shape(call: Call, operation: Operation, *, is_done: bool) -> dict[str, Any]:
    """Returns an operation as the API shows it.

    Source: https://cloud.google.com/compute/docs/reference/rest/v1/zoneOperations
    """
    shape: dict[str, Any] = {
        "kind": "compute#operation",
        "id": operation.id,
        "name": operation.name,
        "operationType": operation.kind,
        "targetLink": call.link(operation.target),
        "targetId": operation.target_id,
        "status": "DONE" if is_done else "RUNNING",
        "user": operation.user,
        "progress": 100 if is_done else 0,
        "insertTime": moment(operation.created_at),
        "startTime": moment(operation.created_at),
        "selfLink": call.link(f"{operation.scope}/operations/{operation.name}"),
    }
    kind, _, name = operation.scope.partition("/")
    if name:
        shape[kind.removesuffix("s")] = call.link(operation.scope)
    if operation.request_id:
        shape["clientOperationId"] = operation.request_id
    if not is_done:
        return shape
    shape["endTime"] = moment(operation.ends_at)
    if operation.error is not None:
        code, message, status = operation.error
        error: dict[str, Any] = {"code": code, "message": message}
        if operation.details:
            error["errorDetails"] = list(operation.details)
        shape |= {
            "error": {"errors": [error]},
            "httpErrorStatusCode": status,
            "httpErrorMessage": {403: "FORBIDDEN", 503: "SERVICE UNAVAILABLE"}.get(status, "BAD REQUEST"),
        }
    return shape


def _has_scope(token: AccessToken, permission: str) -> bool:
    """Returns whether a token may be used for a permission of Compute Engine.

    Source: https://developers.google.com/identity/protocols/oauth2/scopes#compute
    """
    reads = permission.rpartition(".")[2] in ("get", "list")
    enough = (*PERMITTED_BY_ANY, _COMPUTE, *(_READ_ONLY if reads else ()))
    return any(one in enough for one in token.scopes)
