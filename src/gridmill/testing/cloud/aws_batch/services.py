"""The actions of the simulated AWS Batch, and the checks of each request.

Sources: https://docs.aws.amazon.com/batch/latest/APIReference/CommonErrors.html and, for the limits on the
rates of requests, https://docs.aws.amazon.com/batch/latest/userguide/service_limits.html
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from gridmill.testing.cloud.aws_batch import answers, definitions, requests, submissions
from gridmill.testing.cloud.aws_batch.call import Call
from gridmill.testing.cloud.aws_batch.world import World
from gridmill.testing.cloud.cloud_faults import PlannedFault
from gridmill.testing.cloud.ec2 import signature
from gridmill.testing.cloud.ec2.records import Principal
from gridmill.testing.cloud.ec2.refusal import RefusalError, not_simulated
from gridmill.testing.cloud.ec2.users import arn_of, is_denied
from gridmill.testing.cloud.simulation_server import NO_ANSWER, Answer, with_fault
from gridmill.testing.cloud.token_bucket import TokenBuckets

_ACTIONS: Mapping[str, Mapping[str, Callable[[Call], dict[str, Any]]]] = {
    "batch": {
        "CancelJob": requests.cancel_job,
        "DeregisterJobDefinition": definitions.deregister,
        "DescribeComputeEnvironments": requests.describe_environments,
        "DescribeJobDefinitions": definitions.describe,
        "DescribeJobQueues": requests.describe_queues,
        "DescribeJobs": requests.describe_jobs,
        "ListJobs": requests.list_jobs,
        "RegisterJobDefinition": definitions.register,
        "SubmitJob": submissions.submit_job,
        "TerminateJob": requests.terminate_job,
    },
    "logs": {"GetLogEvents": requests.get_log_events},
}
_REQUESTS_PER_SECOND = {"SubmitJob": 50.0}
_OTHER_REQUESTS_PER_SECOND = 20.0


class Services:
    """The simulated services of one account."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._buckets = TokenBuckets()

    def answer(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """Carries out a request, and returns its answer."""
        with self.world.lock:
            try:
                scope = signature.scope_of(headers)
                action = answers.action_of(scope.service, path, headers)
                request = signature.Request(
                    method=method,
                    path=path,
                    headers=headers,
                    body=body,
                    wall_time=self.world.wall_time(),
                )
                return self._carried_out(scope, action, request)
            except RefusalError as error:
                return _refused(error)

    def _carried_out(self, scope: signature.Scope, action: str, request: signature.Request) -> Answer:
        now = self.world.settle()
        self.world.requests.append((now, scope.region, action))
        if scope.region in self.world.faults.regions_down:
            return NO_ANSWER
        principal = self._authenticated(scope, request)
        fault = self.world.faults.next_fault(action, scope.region, scope.access_key)

        def effect() -> Answer:
            values = self._effect(scope, action, principal, request.body, now)
            return Answer(status=200, body=answers.write_answer(scope.service, action, values))

        return with_fault(fault, effect, lambda one: _refused(_error_of(one)))

    def _authenticated(self, scope: signature.Scope, request: signature.Request) -> Principal:
        if scope.region in self.world.faults.regions_gone:
            raise _unrecognized()
        try:
            return self.world.users.signer(scope, request)
        except RefusalError as error:
            if error.status == 403:
                raise _unrecognized() from error
            raise RefusalError("InvalidSignatureException", error.message, 403) from error

    def _effect(
        self, scope: signature.Scope, action: str, principal: Principal, body: bytes, now: float
    ) -> dict[str, Any]:
        world = self.world
        function = _ACTIONS[scope.service].get(action)
        if function is None:
            raise not_simulated(f"the action {action} of {scope.service}")
        if world.faults.throttling:
            self._throttle(scope.region, action, now)
        if is_denied(principal, f"{scope.service}:{action}"):
            text = f"User: {arn_of(principal)} is not authorized to perform: {scope.service}:{action}"
            raise RefusalError("AccessDeniedException", text, 403)
        is_list = action.startswith(("Describe", "List"))
        call = Call(
            world=world,
            region=scope.region,
            action=action,
            parameters=answers.read_request(scope.service, action, body),
            now=now,
            as_of=now - world.faults.lag_seconds() if is_list else now,
        )
        values = function(call)
        world.settle()
        return values

    def _throttle(self, region: str, action: str, now: float) -> None:
        """Takes a token from the token bucket of one second."""
        rate = _REQUESTS_PER_SECOND.get(action, _OTHER_REQUESTS_PER_SECOND)
        if not self._buckets.take((region, action), now, size=rate, per_second=rate):
            raise RefusalError("TooManyRequestsException", "Too Many Requests", 429)


def _unrecognized() -> RefusalError:
    text = "The security token included in the request is invalid."
    return RefusalError("UnrecognizedClientException", text, 403)


def _error_of(fault: PlannedFault) -> RefusalError:
    codes = {"InternalError": "ServerException", "Unavailable": "ServiceUnavailable"}
    return RefusalError(codes.get(fault.code, fault.code), fault.message, fault.status)


def _refused(error: RefusalError) -> Answer:
    body = json.dumps({"__type": error.aws_code, "message": error.message}).encode()
    return Answer(status=error.status, body=body, headers=(("x-amzn-ErrorType", error.aws_code),))
