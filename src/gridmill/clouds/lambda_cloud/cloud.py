"""The implementation of the cloud port for Lambda Cloud.

Lambda Cloud has no idempotency keys. A machine is found by its name, which contains the grid, the lease and a
hash of the token. If the answer to a request is unknown, the list of machines is read before the request is
repeated, until the list would contain a machine of the first request.
"""

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from gridmill.clouds.lambda_cloud.keys import KIND, SshKeys
from gridmill.clouds.lambda_cloud.launch import (
    REQUEST,
    fingerprint,
    is_ours,
    launch_body,
    machine_of,
    name_of,
    new_machine,
    tags_in,
)
from gridmill.clouds.lambda_cloud.offers import free_regions, offers_of
from gridmill.clouds.lambda_cloud.rate_limit import LAUNCH_SECONDS, RateLimit
from gridmill.clouds.lambda_cloud.requests import LambdaRequests, RateError
from gridmill.clouds.lambda_cloud.self_end import end_command
from gridmill.clouds.lambda_cloud.settings import LambdaSettings, read_settings
from gridmill.domain.amounts import GIB, show_bytes
from gridmill.domain.frozen import dataclass, replace
from gridmill.domain.machine import Leftover, Machine, MachineState, Offer, ProviderTraits, SelfEnd
from gridmill.errors import (
    ConflictError,
    GridmillError,
    NoMachineError,
    NotFoundError,
    QuotaError,
    RefusedError,
    UnavailableError,
)
from gridmill.ports.cloud import AccountCheck, LaunchRequest

LIST_LAG_SECONDS = 30.0
"""The time after which the list of machines certainly contains a new machine. Lambda Cloud documents none;
this time is an assumption."""
TRAITS = ProviderTraits(
    self_end=SelfEnd.NONE,
    list_lag_seconds=LIST_LAG_SECONDS,
    launch_gap_seconds=LAUNCH_SECONDS,
    call_gap_seconds=1.0,
    least_billed_seconds=60.0,
    bills_stopped=True,
)
_POLL_SECONDS = 3.0
_CAPACITY_SECONDS = 60.0
"""The time for which the list of regions with free machines is used again."""
_MOST_REMEMBERED = 1000
_ANYWHERE = ("0.0.0.0/0",)
_RATE_LIMITS: dict[tuple[str, str], RateLimit] = {}
_RATE_LIMITS_LOCK = threading.Lock()


def make(settings: Mapping[str, str], resolve: Callable[[str], str]) -> "LambdaCloud":
    """Open the account. `resolve` returns the value of a secret with a given name. No request is sent.
    Raises InputError."""
    read = partial(read_settings, settings, resolve)
    parsed = read()
    with _RATE_LIMITS_LOCK:  # all objects of an account share its limits
        rate_limit = _RATE_LIMITS.setdefault((parsed.endpoint_url, parsed.account), RateLimit())
    return LambdaCloud(parsed, read, rate_limit)


@dataclass(slots=True, kw_only=True)
class _Launched:
    """A machine that was launched: the hash of its request, and the time of the launch on the clock of the
    rate limit. `is_ending` means that Lambda Cloud has accepted the request to end it."""

    request: str
    machine: Machine
    at: float
    is_ending: bool = False


class LambdaCloud:
    """The machines of an account at Lambda Cloud. Implements `CloudPort` and `EndCommands`."""

    def __init__(
        self,
        settings: LambdaSettings,
        read_again: Callable[[], LambdaSettings] | None = None,
        rate_limit: RateLimit | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`read_again` returns the settings with the present credentials, and `now` the Unix time."""
        self.traits = replace(TRAITS, self_end=SelfEnd.OWN_CALL) if settings.machine_key else TRAITS
        self._settings, self._now = settings, now
        self._requests = LambdaRequests(settings, read_again, rate_limit)
        self._rate_limit = self._requests.rate_limit
        self._keys = SshKeys(self._requests)
        self._opened = self._rate_limit.monotonic()
        self._types: tuple[float, Mapping[str, Mapping[str, Any]]] | None = None
        self._launched: dict[str, _Launched] = {}
        self._sent: dict[str, float] = {}
        """The times of requests whose answers were lost, by token."""
        self._launching: dict[str, threading.Lock] = {}
        self._lock = threading.Lock()

    def account_name(self) -> str:
        """See `CloudPort`."""
        return self._requests.account

    def check_account(self, region: str) -> AccountCheck:
        """See `CloudPort`. An API key of Lambda Cloud has all rights, and no request returns the quotas."""
        del region
        self._requests.get("/instances")
        return AccountCheck(account=self.account_name())

    def offers(self, region: str = "", instance_type: str = "") -> tuple[Offer, ...]:
        """See `CloudPort`."""
        offers = offers_of(
            self._read_types(),
            lambda one: self._settings.permits(one) and one.startswith(region),
            self._now(),
        )
        return tuple(one for one in offers if instance_type in ("", one.instance_type))

    def launch(self, request: LaunchRequest) -> Machine:
        """See `CloudPort`. If the answer to an earlier request with the token was lost, the method waits
        until the list of machines would have the machine."""
        self._check(request)
        with self._lock:
            turn = self._launching.setdefault(request.token, threading.Lock())
        with turn:
            known = self._launched.get(request.token)
            return self._again(known, request) if known else self._launch(request)

    def machines(self, owner: str = "") -> tuple[Machine, ...]:
        """See `CloudPort`. Machines of all regions are in one list."""
        machines = [machine_of(one) for one in self._requests.pages("/instances") if is_ours(one)]
        return tuple(one for one in machines if owner in ("", one.owner))

    def terminate(self, machine: Machine) -> None:
        """See `CloudPort`."""
        with suppress(NotFoundError):
            self._requests.post("/instance-operations/terminate", {"instance_ids": [machine.id]})
        with self._lock:
            for known in self._launched.values():
                known.is_ending |= known.machine.id == machine.id

    def leftovers(self, owner: str = "") -> tuple[Leftover, ...]:
        """See `CloudPort`. Firewall rules belong to the whole account and are never changed."""
        return tuple(self._keys.leftovers(owner))

    def delete(self, leftover: Leftover) -> None:
        """See `CloudPort`."""
        if leftover.kind != KIND:
            raise NotFoundError(
                f"Lambda Cloud has no {leftover.kind!r} of Gridmill", place=f"leftover {leftover.id}"
            )
        self._keys.delete(leftover.id)

    def end_command(self, token: str) -> str:
        """See `EndCommands`."""
        key = self._settings.machine_key
        return end_command(key, self._settings.endpoint_url, token) if key else ""

    def close(self) -> None:
        """See `CloudPort`."""
        self._requests.close()

    def _check(self, request: LaunchRequest) -> None:
        """Raise RefusedError for a request that Lambda Cloud cannot fulfil."""
        place = f"lambda {request.region}"
        if request.spot:
            raise RefusedError("Lambda Cloud has no spot machines", hint="Remove --spot.", place=place)
        if not self._settings.permits(request.region):
            raise RefusedError(
                f"the region {request.region!r} is not among the regions of the cloud provider",
                hint="Add it to the setting `regions`.",
                place=place,
            )
        if request.allowed_addresses != _ANYWHERE:
            raise RefusedError(
                "the firewall rules of Lambda Cloud apply to all machines of the account, and Gridmill does "
                "not change them",
                hint="Remove the setting `ssh_from`, and set the rules at https://cloud.lambda.ai/firewall.",
                place=place,
            )

    def _again(self, known: _Launched, request: LaunchRequest) -> Machine:
        """Return the machine of an earlier request, which this object has sent."""
        if known.request != fingerprint(request):
            raise _other_parameters(request)
        try:
            seen = machine_of(self._requests.get(f"/instances/{known.machine.id}")["data"])
            is_stale = known.is_ending and seen.state in (MachineState.PENDING, MachineState.RUNNING)
            return replace(seen, state=MachineState.STOPPING) if is_stale else seen
        except NotFoundError:
            is_new = not known.is_ending and self._rate_limit.monotonic() - known.at < LIST_LAG_SECONDS
            return known.machine if is_new else replace(known.machine, state=MachineState.ENDED)

    def _launch(self, request: LaunchRequest) -> Machine:
        key = self._keys.find(request)
        if key or request.token in self._sent:
            found = self._found(request)
            if found is not None:
                return found
            key = self._keys.find(request)  # by now, the list has every key of the first request
        self._check_type(request)
        return self._remember(request, self._send(request, key or self._keys.add(request)))

    def _found(self, request: LaunchRequest) -> Machine | None:
        """Return the machine of an earlier request, or None after the time in which it would be listed.
        Requests of an earlier process were sent before this object was opened."""
        until = self._sent.get(request.token, self._opened) + LIST_LAG_SECONDS
        while True:
            began = self._rate_limit.monotonic()
            for one in self._requests.pages("/instances"):
                if one.get("name") == name_of(request):
                    if tags_in(one).get(REQUEST, fingerprint(request)) != fingerprint(request):
                        raise _other_parameters(request)
                    return self._remember(request, machine_of(one))
            if began >= until:
                return None
            self._rate_limit.pause(_POLL_SECONDS)

    def _send(self, request: LaunchRequest, key: str) -> Machine:
        now = self._now()
        try:
            answer = self._requests.post(
                "/instance-operations/launch", launch_body(request, now), is_launch=True
            )
            (machine_id,) = answer["data"]["instance_ids"]
        except RateError:
            raise
        except (NoMachineError, QuotaError, RefusedError):
            self._delete_key(key)
            raise
        except NotFoundError as error:
            raise self._missing(key, error) from error
        except (UnavailableError, KeyError, TypeError, ValueError) as error:
            self._note_lost(request.token)
            if isinstance(error, UnavailableError):
                raise
            raise UnavailableError(
                "the answer to the launch is not from Lambda Cloud", place=f"lambda {request.region}"
            ) from error
        return new_machine(request, str(machine_id), MachineState.PENDING, now)

    def _missing(self, key: str, error: NotFoundError) -> GridmillError:
        """Return the error for a launch with something that does not exist. A new SSH key may not be visible
        yet."""
        if "ssh" in error.message.lower():
            return RateError(error.message, hint=error.hint, place=error.place)
        self._delete_key(key)
        return RefusedError(error.message, hint=error.hint, place=error.place)

    def _delete_key(self, key: str) -> None:
        """Delete the key of a refused request. If that fails, the key is deleted with the lease."""
        with suppress(GridmillError):
            self._keys.delete(key)

    def _remember(self, request: LaunchRequest, machine: Machine) -> Machine:
        launched = _Launched(request=fingerprint(request), machine=machine, at=self._rate_limit.monotonic())
        with self._lock:
            if len(self._launched) >= _MOST_REMEMBERED:
                oldest = next(iter(self._launched))
                self._launched.pop(oldest)
                self._launching.pop(oldest, None)
            self._launched[request.token] = launched
            self._sent.pop(request.token, None)
        return machine

    def _note_lost(self, token: str) -> None:
        with self._lock:
            self._sent[token] = self._rate_limit.monotonic()

    def _read_types(self) -> Mapping[str, Mapping[str, Any]]:
        types: Mapping[str, Mapping[str, Any]] = self._requests.get("/instance-types")["data"]
        with self._lock:
            self._types = self._rate_limit.monotonic(), types
        return types

    def _known_types(self) -> Mapping[str, Mapping[str, Any]]:
        with self._lock:
            known = self._types
        if known is None or self._rate_limit.monotonic() - known[0] > _CAPACITY_SECONDS:
            return self._read_types()
        return known[1]

    def _check_type(self, request: LaunchRequest) -> None:
        """Raise NoMachineError if the region has no free machine, which saves one of the few launches that
        are permitted, and RefusedError if the disk of the type is too small."""
        described = self._known_types().get(request.instance_type)
        if described is None:
            return  # Lambda Cloud refuses the launch with its own reason
        disk_bytes = int(described["instance_type"]["specs"].get("storage_gib", 0)) * GIB
        place = f"lambda {request.region}"
        if 0 < disk_bytes < request.disk_bytes:
            raise RefusedError(
                f"{request.instance_type} has a disk of {show_bytes(disk_bytes)}, which cannot be enlarged",
                hint="Choose a smaller --disk, or another type.",
                place=place,
            )
        if request.region not in free_regions(described):
            raise NoMachineError(
                f"no free {request.instance_type} in {request.region} at Lambda Cloud now", place=place
            )


def _other_parameters(request: LaunchRequest) -> ConflictError:
    return ConflictError(
        f"the request {request.token} was sent before with other parameters",
        place=f"lambda {request.region}",
    )
