"""The operations of the simulated Lambda Cloud, and the checks of each request.

Source: https://docs-api.lambda.ai/api/cloud (paths, names of the operations, formats, authentication and
limits of rates)
"""

import base64
import binascii
import json
import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from gridmill.testing.cloud.cloud_faults import PlannedFault
from gridmill.testing.cloud.lambda_cloud import firewalls, instances, keys
from gridmill.testing.cloud.lambda_cloud.call import Call
from gridmill.testing.cloud.lambda_cloud.launch import launch_instance
from gridmill.testing.cloud.lambda_cloud.refusal import (
    LambdaRefusalError,
    inactive,
    invalid,
    not_simulated,
    unauthorized,
)
from gridmill.testing.cloud.lambda_cloud.world import LambdaWorld
from gridmill.testing.cloud.simulation_server import Answer, json_answer, with_fault

_Operation = Callable[[Call], Any]
_OPERATIONS: tuple[tuple[str, str, str, _Operation], ...] = (
    ("GET", "instances", "listInstances", instances.list_instances),
    ("GET", "instances/{id}", "getInstance", instances.get_instance),
    ("POST", "instances/{id}", "postInstance", instances.post_instance),
    ("GET", "instance-types", "listInstanceTypes", instances.list_types),
    ("POST", "instance-operations/launch", "launchInstance", launch_instance),
    ("POST", "instance-operations/terminate", "terminateInstance", instances.terminate_instance),
    ("POST", "instance-operations/restart", "restartInstance", instances.restart_instance),
    ("GET", "ssh-keys", "listSSHKeys", keys.list_keys),
    ("POST", "ssh-keys", "addSSHKey", keys.add_key),
    ("DELETE", "ssh-keys/{id}", "deleteSSHKey", keys.delete_key),
    ("GET", "images", "listImages", instances.list_images),
    ("GET", "firewall-rules", "firewallRulesList", firewalls.list_rules),
    ("PUT", "firewall-rules", "firewallRulesSet", firewalls.set_rules),
    ("GET", "firewall-rulesets", "firewallRulesetsList", firewalls.list_rulesets),
    ("POST", "firewall-rulesets", "createFirewallRuleset", firewalls.create_ruleset),
    ("GET", "firewall-rulesets/{id}", "getFirewallRuleset", firewalls.get_ruleset),
    ("PATCH", "firewall-rulesets/{id}", "updateFirewallRuleset", firewalls.update_ruleset),
    ("DELETE", "firewall-rulesets/{id}", "deleteFirewallRuleset", firewalls.delete_ruleset),
)
_PATHS = tuple(
    (method, re.compile("/api/v1/" + path.replace("{id}", "([^/]+)")), name, function)
    for method, path, name, function in _OPERATIONS
)
_EVERY_SECONDS, _LAUNCH_EVERY_SECONDS = 1.0, 12.0
"""One request per second, and one launch per 12 seconds."""
_LAUNCH = "launchInstance"


class LambdaApi:
    """The API of one account."""

    def __init__(self, world: LambdaWorld) -> None:
        self.world = world
        self._next_at = {"": 0.0, _LAUNCH: 0.0}

    def answer(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """Carries out a request, and returns its answer."""
        with self.world.lock:
            try:
                return self._carried_out(method, urlsplit(path).path, headers, body)
            except LambdaRefusalError as error:
                return _refused(error)

    def _carried_out(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        now = self.world.settle()
        action, function, subject = _operation(method, path)
        key = _api_key(headers)
        request = _json(body)
        region = str(request.get("region_name", ""))
        self.world.requests.append((now, region, action))
        if not self.world.api_keys.get(key, False):
            raise unauthorized()
        if not self.world.is_active:
            raise inactive()
        if self.world.faults.throttling and not self._admitted(action, now):
            return Answer(status=429, body=b"error code: 1015", content_type="text/plain; charset=UTF-8")
        fault = self.world.faults.next_fault(action, region, key)
        return with_fault(fault, lambda: self._effect(function, method, subject, request, now), _error)

    def _effect(
        self, function: _Operation, method: str, subject: str, request: Mapping[str, Any], now: float
    ) -> Answer:
        as_of = now - self.world.faults.lag_seconds() if method == "GET" else now
        call = Call(world=self.world, subject=subject, body=request, now=now, as_of=as_of)
        try:
            data = function(call)
        except LambdaRefusalError as error:
            return _refused(error)
        self.world.settle()
        return json_answer({"data": data})

    def _admitted(self, action: str, now: float) -> bool:
        limits = {"": _EVERY_SECONDS} | ({_LAUNCH: _LAUNCH_EVERY_SECONDS} if action == _LAUNCH else {})
        if any(now < self._next_at[name] for name in limits):
            return False
        self._next_at |= {name: now + seconds for name, seconds in limits.items()}
        return True


def _operation(method: str, path: str) -> tuple[str, _Operation, str]:
    for known, pattern, name, function in _PATHS:
        match = pattern.fullmatch(path)
        if match is not None and known == method:
            return name, function, match[1] if match.groups() else ""
    raise not_simulated(f"{method} {path}")


def _api_key(headers: Mapping[str, str]) -> str:
    """Returns the API key of a request: `Bearer KEY`, `Basic BASE64(KEY:)` or `Basic KEY`."""
    scheme, _, value = headers.get("Authorization", "").partition(" ")
    value = value.strip()
    if scheme.lower() == "bearer":
        return value
    if scheme.lower() != "basic":
        return ""
    try:
        return base64.b64decode(value, validate=True).decode().partition(":")[0]
    except (binascii.Error, UnicodeDecodeError):
        return value


def _json(body: bytes) -> Mapping[str, Any]:
    try:
        value = json.loads(body or b"{}")
    except ValueError as error:
        raise invalid("The body is not JSON.") from error
    if not isinstance(value, dict):
        raise invalid("The body is not an object.")
    return value


def _refused(error: LambdaRefusalError) -> Answer:
    shape = {"code": error.lambda_code, "message": error.message}
    if error.suggestion:
        shape["suggestion"] = error.suggestion
    return json_answer({"error": shape}, error.status)


def _error(fault: PlannedFault) -> Answer:
    code = fault.code if "/" in fault.code else "global/internal-error"
    return _refused(LambdaRefusalError(code, fault.message, fault.status))
