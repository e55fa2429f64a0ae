"""The methods of the simulated Google services, and the checks of each request.

Sources: https://cloud.google.com/compute/docs/reference/rest/v1 (paths) and
https://cloud.google.com/compute/docs/reference/rest/v1/instances/insert (`requestId`)
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

from gridmill.domain.frozen import dataclass
from gridmill.testing.cloud.cloud_faults import PlannedFault
from gridmill.testing.cloud.gce import (
    firewalls,
    instances,
    offers,
    operations,
    own_images,
    policies,
    prices,
    storage,
)
from gridmill.testing.cloud.gce.call import Action, Call, moment, operation_shape
from gridmill.testing.cloud.gce.catalogue import region_of
from gridmill.testing.cloud.gce.field_masks import masked
from gridmill.testing.cloud.gce.launch import insert_instance
from gridmill.testing.cloud.gce.refusal import (
    GoogleRefusalError,
    bad_request,
    forbidden,
    not_simulated,
    too_many_requests,
    unauthenticated,
)
from gridmill.testing.cloud.gce.world import GceWorld
from gridmill.testing.cloud.google_accounts import TOKEN_PATH, is_permitted
from gridmill.testing.cloud.simulation_server import NO_ANSWER, Answer, json_answer, with_fault
from gridmill.testing.cloud.token_bucket import TokenBuckets

_COMPUTE = "/compute/v1/projects/{project}"
_ZONE, _REGION, _GLOBAL = f"{_COMPUTE}/zones/{{zone}}", f"{_COMPUTE}/regions/{{region}}", f"{_COMPUTE}/global"
_ALL = f"{_COMPUTE}/aggregated"


def _test_permissions(call: Call) -> dict[str, Any]:
    given = call.body.get("permissions") or []
    if any("*" in one for one in given):
        raise bad_request("Permissions with wildcards are not allowed.")
    resource = f"projects/{call.world.project}"
    return {"permissions": [one for one in given if is_permitted(call.caller, one, resource)]}


def _list_skus(call: Call) -> dict[str, Any]:
    page_size, token = call.query.get("pageSize", ""), call.query.get("pageToken", "")
    if call.query.get("currencyCode", "USD") != "USD":
        raise not_simulated("prices in other currencies")
    return prices.list_skus(call.place["name"], call.world.faults, page_size, token, moment(0.0))


_METHODS: tuple[tuple[str, str, str, Action], ...] = (
    ("GET", _COMPUTE, "projects.get", offers.get_project),
    ("GET", f"{_COMPUTE}/regions", "regions.list", offers.list_regions),
    ("GET", _REGION, "regions.get", offers.get_region),
    ("GET", f"{_COMPUTE}/zones", "zones.list", offers.list_zones),
    ("GET", _ZONE, "zones.get", offers.get_zone),
    ("GET", f"{_ALL}/machineTypes", "machineTypes.aggregatedList", offers.list_all_types),
    ("GET", f"{_ZONE}/machineTypes", "machineTypes.list", offers.list_types),
    ("GET", f"{_ZONE}/machineTypes/{{name}}", "machineTypes.get", offers.get_type),
    ("GET", f"{_ALL}/acceleratorTypes", "acceleratorTypes.aggregatedList", offers.list_all_accelerators),
    ("GET", f"{_ZONE}/acceleratorTypes", "acceleratorTypes.list", offers.list_accelerators),
    ("GET", f"{_GLOBAL}/images", "images.list", offers.list_images),
    ("GET", f"{_GLOBAL}/images/{{name}}", "images.get", offers.get_image),
    ("POST", f"{_GLOBAL}/images", "images.insert", own_images.insert_image),
    ("DELETE", f"{_GLOBAL}/images/{{name}}", "images.delete", own_images.delete_image),
    ("POST", f"{_GLOBAL}/images/{{name}}/setLabels", "images.setLabels", own_images.set_labels),
    ("GET", f"{_GLOBAL}/images/family/{{name}}", "images.getFromFamily", offers.get_family),
    ("POST", f"{_ZONE}/instances", "instances.insert", insert_instance),
    ("GET", f"{_ZONE}/instances", "instances.list", instances.list_instances),
    ("GET", f"{_ALL}/instances", "instances.aggregatedList", instances.list_all),
    ("GET", f"{_ZONE}/instances/{{name}}", "instances.get", instances.get_instance),
    ("DELETE", f"{_ZONE}/instances/{{name}}", "instances.delete", instances.delete_instance),
    ("POST", f"{_ZONE}/instances/{{name}}/stop", "instances.stop", instances.stop_instance),
    ("POST", f"{_ZONE}/instances/{{name}}/setLabels", "instances.setLabels", instances.set_labels),
    ("POST", f"{_ZONE}/instances/{{name}}/setIamPolicy", "instances.setIamPolicy", policies.set_of_instance),
    ("POST", f"{_ZONE}/disks/{{name}}/setIamPolicy", "disks.setIamPolicy", policies.set_of_disk),
    (
        "GET",
        f"{_ZONE}/instances/{{name}}/serialPort",
        "instances.getSerialPortOutput",
        instances.serial_output,
    ),
    ("GET", f"{_ZONE}/operations", "zoneOperations.list", operations.list_operations),
    ("GET", f"{_ZONE}/operations/{{operation}}", "zoneOperations.get", operations.get_operation),
    ("POST", f"{_ZONE}/operations/{{operation}}/wait", "zoneOperations.wait", operations.get_operation),
    ("GET", f"{_REGION}/operations/{{operation}}", "regionOperations.get", operations.get_operation),
    ("POST", f"{_REGION}/operations/{{operation}}/wait", "regionOperations.wait", operations.get_operation),
    ("GET", f"{_GLOBAL}/operations/{{operation}}", "globalOperations.get", operations.get_operation),
    ("POST", f"{_GLOBAL}/operations/{{operation}}/wait", "globalOperations.wait", operations.get_operation),
    ("GET", f"{_ZONE}/disks", "disks.list", storage.list_disks),
    ("GET", f"{_ALL}/disks", "disks.aggregatedList", storage.list_all_disks),
    ("GET", f"{_ZONE}/disks/{{name}}", "disks.get", storage.get_disk),
    ("DELETE", f"{_ZONE}/disks/{{name}}", "disks.delete", storage.delete_disk),
    ("GET", f"{_REGION}/addresses", "addresses.list", storage.list_addresses),
    ("POST", f"{_REGION}/addresses", "addresses.insert", storage.insert_address),
    ("GET", f"{_ALL}/addresses", "addresses.aggregatedList", storage.list_all_addresses),
    ("GET", f"{_REGION}/addresses/{{name}}", "addresses.get", storage.get_address),
    ("DELETE", f"{_REGION}/addresses/{{name}}", "addresses.delete", storage.delete_address),
    ("GET", f"{_GLOBAL}/firewalls", "firewalls.list", firewalls.list_firewalls),
    ("POST", f"{_GLOBAL}/firewalls", "firewalls.insert", firewalls.insert_firewall),
    ("GET", f"{_GLOBAL}/firewalls/{{name}}", "firewalls.get", firewalls.get_firewall),
    ("DELETE", f"{_GLOBAL}/firewalls/{{name}}", "firewalls.delete", firewalls.delete_firewall),
    ("POST", "/v1/projects/{project}:testIamPermissions", "projects.testIamPermissions", _test_permissions),
    ("POST", "/v3/projects/{project}:testIamPermissions", "projects.testIamPermissions", _test_permissions),
    ("GET", "/v1/services/{name}/skus", "services.skus.list", _list_skus),
)


def _pattern(path: str) -> re.Pattern[str]:
    parts = re.split(r"\{(\w+)\}", path)
    texts = [f"(?P<{one}>[^/:]+)" if index % 2 else re.escape(one) for index, one in enumerate(parts)]
    return re.compile("".join(texts))


_ROUTES = tuple((method, _pattern(path), name, function) for method, path, name, function in _METHODS)
_QUERY = {
    "filter",
    "maxResults",
    "pageToken",
    "returnPartialSuccess",
    "requestId",
    "forceCreate",
    "fields",
    "prettyPrint",
    "alt",
    "pageSize",
    "currencyCode",
    "port",
    "start",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Route:
    """The method of a request."""

    action: str
    function: Action
    place: Mapping[str, str]

    @property
    def where(self) -> str:
        """Returns the zone or the region of the request, or `global`."""
        return self.place.get("zone") or self.place.get("region") or "global"

    @property
    def is_read(self) -> bool:
        """Returns whether the method changes nothing."""
        return self.action.endswith((".get", "List", ".list"))


_REQUESTS_PER_SECOND, _BURST = 25.0, 1500.0
"""1,500 requests per minute in each group of methods."""


class GoogleApi:
    """The services of one project."""

    def __init__(self, world: GceWorld, token_uri: Callable[[], str]) -> None:
        self.world = world
        self._token_uri = token_uri
        self.buckets = TokenBuckets()

    def answer(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """Carries out a request, and returns its answer."""
        parts = urlsplit(path)
        query = {name: values[-1] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        with self.world.lock:
            try:
                if parts.path == TOKEN_PATH:
                    return self._token(body)
                route = _route(method, parts.path)
                return self._carried_out(route, query, headers, body)
            except GoogleRefusalError as error:
                return _refused(error)

    def _token(self, body: bytes) -> Answer:
        now = self.world.settle()
        self.world.requests.append((now, "global", "oauth2.token"))

        def effect() -> Answer:
            return self.world.accounts.exchange(body, self._token_uri(), self.world.wall_time())

        return with_fault(self.world.faults.next_fault("oauth2.token", "global", ""), effect, _error)

    def _carried_out(
        self, route: _Route, query: Mapping[str, str], headers: Mapping[str, str], body: bytes
    ) -> Answer:
        world = self.world
        now = world.settle()
        world.requests.append((now, route.where, route.action))
        if any(route.where.startswith(one) for one in world.faults.regions_down):
            return NO_ANSWER
        found = world.accounts.caller(headers, world.wall_time())
        if found is None:
            raise unauthenticated()
        caller, token = found
        self._check_project(route)
        if world.faults.throttling:
            self._throttle(_group(route), now)
        as_of = now - world.faults.lag_seconds() if route.action.endswith(("ist",)) else now
        request = _json(body)
        call = Call(
            world=world,
            action=route.action,
            place=route.place,
            query=query,
            body=request,
            caller=caller,
            token=token,
            now=now,
            as_of=as_of,
        )
        fault = world.faults.next_fault(route.action, route.where, caller.email)
        return with_fault(fault, lambda: self._effect(route, call), _error)

    def _throttle(self, group: str, now: float) -> None:
        """Takes a token from the bucket of a group of methods, such as `lists`.

        Source: https://cloud.google.com/compute/api-quota
        """
        if not self.buckets.take(group, now, size=_BURST, per_second=_REQUESTS_PER_SECOND):
            raise too_many_requests()

    def _check_project(self, route: _Route) -> None:
        project = route.place.get("project", self.world.project)
        is_public = route.action in ("images.get", "images.list", "images.getFromFamily")
        if project != self.world.project and not is_public:
            raise forbidden("compute.projects.get", f"projects/{project}")
        gone = self.world.faults.regions_gone
        if route.where in gone or region_of(route.where) in gone:
            text = f"Permission denied on 'locations/{route.where}' (or it may not exist)."
            raise GoogleRefusalError("forbidden", text, 403)

    def _effect(self, route: _Route, call: Call) -> Answer:
        try:
            if unknown := set(call.query) - _QUERY:
                raise not_simulated(f"the parameter {min(unknown)}")
            known = self.world.request_ids.get(call.query.get("requestId", "")) if not route.is_read else None
            if known is not None:
                operation = self.world.operations[known]
                value = operation_shape(call, operation, is_done=operation.is_done(call.now))
            else:
                value = route.function(call)
            self.world.settle()
        except GoogleRefusalError as error:
            return _refused(error)
        return json_answer(masked(value, call.query.get("fields", "")))

    def is_done(self, path: str) -> bool:
        """Returns whether the operation at the end of a path has ended, or is unknown."""
        name = path.removesuffix("/wait").rpartition("/")[2]
        with self.world.lock:
            operation = self.world.operations.get(name)
            return operation is None or operation.is_done(self.world.settle())


def _group(route: _Route) -> str:
    if "Operations." in route.action:
        return "operations"
    if route.action.endswith("ist"):
        return "lists"
    return "reads" if route.is_read else "changes"


def _route(method: str, path: str) -> _Route:
    for known, pattern, name, function in _ROUTES:
        match = pattern.fullmatch(path)
        if match is not None and known == method:
            return _Route(action=name, function=function, place=match.groupdict())
    raise not_simulated(f"{method} {path}")


def _json(body: bytes) -> Mapping[str, Any]:
    try:
        value = json.loads(body or b"{}")
    except ValueError as error:
        raise GoogleRefusalError("parseError", "Parse Error", 400) from error
    if not isinstance(value, dict):
        raise GoogleRefusalError("parseError", "Parse Error", 400)
    return value


def _refused(error: GoogleRefusalError) -> Answer:
    return json_answer(error.as_json(), error.status)


def _error(fault: PlannedFault) -> Answer:
    reasons = {"InternalError": "internalError", "Unavailable": "backendError"}
    return _refused(GoogleRefusalError(reasons.get(fault.code, fault.code), fault.message, fault.status))
