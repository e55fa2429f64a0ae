"""The command `join`: makes this machine a provider node of a grid, always or while its owner is away."""

import os
import sys
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from gridmill.cli.session import InterruptHandler, Json, emit, host_of, print_error, settings_of
from gridmill.domain.amounts import MIB, parse_bytes, parse_seconds, show_bytes, show_count, show_seconds
from gridmill.domain.naming import read_address
from gridmill.domain.owner_idle import IdleRules, OwnerPresence, is_idle, note, spare_bytes
from gridmill.errors import GridmillError, InputError, UnavailableError
from gridmill.ports.host import GRID_PORT, JoinedNode, Provider

_TOKEN = "GRIDMILL_TOKEN"
_LOOK_SECONDS = 1.0
_GIVEN_SHARE = 0.8
_LEAST_BYTES = 256 * MIB
"""The smallest size of a job: a machine that offers less memory takes no job."""


def join(
    context: typer.Context,
    address: Annotated[
        str, typer.Argument(metavar="HOST[:PORT]", help="Address that `gridmill up --ray` prints.")
    ],
    token: Annotated[
        str,
        typer.Option(help=f"The grid's token; better in {_TOKEN}, or `-` to read it from standard input."),
    ] = "",
    cpus: Annotated[float | None, typer.Option(min=1, help="CPUs to lend. Default: all.")] = None,
    memory: Annotated[
        str | None, typer.Option(help="Memory to lend, for example 8GiB. Default: 80 %.")
    ] = None,
    idle_only: Annotated[
        bool, typer.Option("--idle-only", help="Lend the machine only while its owner does not use it.")
    ] = False,
    idle_after: Annotated[
        str, typer.Option(help="Time without any sign of the owner before the machine is lent.")
    ] = "5m",
    hours: Annotated[
        str | None,
        typer.Option(
            metavar="FROM-TO", help="Lend the machine only at these hours (local time), for example 19-07."
        ),
    ] = None,
    wait: Annotated[str, typer.Option(help="Time for which an unreachable grid is retried.")] = "2m",
    json: Json = False,
) -> None:
    """Make this machine a provider node of a grid, until Ctrl-C.

    With --idle-only, the machine is lent after its owner has not used it for --idle-after, and returned at
    the first sign of the owner: its jobs end within seconds and continue on another machine from their last
    checkpoint. If the machine was a node of the grid before, the command waits until the grid is back.
    """
    folder = settings_of(context).home / "node"
    address = head_address(address)
    machine = host_of(context).provider()
    given = read_memory(memory, machine.memory_bytes())
    given_cpus = read_cpus(cpus, os.cpu_count() or 1)
    rules = read_rules(idle_only, idle_after, hours)
    patience = JoinRetryLimit(parse_seconds(wait))
    secret = _read_token(token, settings_of(context).token)
    with machine.claim(folder), InterruptHandler() as interrupts:
        membership = Membership(
            machine,
            folder,
            address,
            secret,
            given_cpus,
            given,
            behind=idle_only,
            tell=emit if json else _print_state,
        )
        try:
            _stay_joined(membership, rules, interrupts, patience)
        finally:
            membership.leave()


def _print_state(told: dict[str, str]) -> None:
    at, why = told.get("at", ""), told.get("why", "")
    print_error(f"{told['state']}{f' at {at}' if at else ''}{f': {why}' if why else ''}")


class Membership:
    """This machine's place in the grid: taken and given up."""

    def __init__(
        self,
        machine: Provider,
        folder: Path,
        address: str,
        token: str,
        cpus: int | None,
        memory: int,
        *,
        behind: bool,
        tell: Callable[[dict[str, str]], None],
    ) -> None:
        self.machine = machine
        self._folder, self._address, self._token = folder, address, token
        self._cpus, self._memory = cpus, memory
        self._behind = behind
        self.print_state = tell
        self._node: JoinedNode | None = None
        self.joined = False

    @property
    def is_active(self) -> bool:
        """Whether this machine is a node now."""
        return self._node is not None and self._node.up

    def enter(self, beat: Callable[[], None]) -> None:
        """`beat` is called meanwhile and may raise. Raises this, and what Provider.join raises; nothing runs
        then."""
        self.leave()
        self._node = self.machine.join(
            self._folder,
            self._address,
            self._token,
            cpus=self._cpus,
            memory_bytes=self._to_give(),
            behind=self._behind,
        )
        try:
            self._node.wait_until_up(beat)
        except GridmillError:
            self.leave()
            raise
        self.joined = True
        self.print_state({"state": "joined the grid", "at": self._address})

    def _to_give(self) -> int:
        """Of a machine that has an owner, no more than the owner leaves just now."""
        if not self._behind:
            return self._memory
        machine = self.machine
        return spare_bytes(self._memory, memory_bytes=machine.memory_bytes(), used_bytes=machine.used_bytes())

    def leave(self, why: str = "") -> None:
        """Take the node from the grid, then end what is left of its jobs. With `why`, say that it is the
        owner's again as soon as it is no node. May be repeated."""
        node, self._node = self._node, None
        if node is None:
            return
        node.leave()
        if why:
            self.print_state({"state": "given back to its owner", "why": why})
        node.clear()


class JoinRetryLimit:
    """How long a grid that cannot be reached is tried again before it was joined once: `seconds` from the
    first time that it failed."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._since: float | None = None

    def after(self, error: UnavailableError, now: float) -> str:
        """What to say while it is tried again. Raises UnavailableError, the last, when that is over."""
        self._since = now if self._since is None else self._since
        if now < self._since + self._seconds:
            return f"{error.message}; trying again for {show_seconds(self._seconds)}"
        tried = f", also not when tried again for {show_seconds(self._seconds)}" if self._seconds else ""
        raise UnavailableError(
            f"the grid could not be joined{tried}: {error.message}", hint=error.hint
        ) from error


class OwnerIsBackError(Exception):
    """There was a sign of the machine's owner while the machine was about to join."""


class OwnerWatch:
    """Looks for the owner of a machine, and decides when the machine is lent. Without rules it always is."""

    def __init__(self, machine: Provider, rules: IdleRules | None) -> None:
        self._machine, self._rules = machine, rules
        self._presence = OwnerPresence(seen=time.monotonic())
        self._lent_at: float | None = None

    def why_blind(self) -> str:
        """Why not all can be seen; empty: it can, or need not."""
        if self._rules is None:
            return ""
        self._machine.seconds_since_input()
        return self._machine.why_blind()

    def is_back(self) -> str:
        """The sign of the owner of a machine that is lent; empty: there is none. Takes a second, or no time
        without rules."""
        return "" if self._rules is None else self.look(is_lent=True)[1]

    def look(self, *, is_lent: bool) -> tuple[bool, str]:
        """Whether the machine is to be lent, and why not. Takes a second, unless it always is and `is_lent`
        is False."""
        if self._rules is None:
            if is_lent:
                time.sleep(_LOOK_SECONDS)
            return True, ""
        machine, rules = self._machine, self._rules
        look = machine.look(_LOOK_SECONDS)
        now = time.monotonic()
        seconds = machine.seconds_since_input()
        self._presence = note(
            self._presence,
            look,
            memory_bytes=machine.memory_bytes(),
            input_seconds=seconds,
            now=now,
            sign=machine.last_sign(),
        )
        hour = datetime.now().astimezone().hour
        lent_at = self._lent_at if is_lent else None
        wanted, why = is_idle(self._presence, rules, lent_at=lent_at, now=now, hour=hour)
        self._lent_at = (now if lent_at is None else lent_at) if wanted else None
        return wanted, why


def _stay_joined(
    membership: Membership, rules: IdleRules | None, interrupts: InterruptHandler, patience: JoinRetryLimit
) -> None:
    """Until Ctrl-C. A grid that is away for a while is joined again."""
    watch = OwnerWatch(membership.machine, rules)
    if why_blind := watch.why_blind():
        membership.print_state({"state": "not all is seen", "why": why_blind})
    message = ""
    while not interrupts.requested:
        wanted, why = watch.look(is_lent=membership.is_active)
        if wanted and not membership.is_active:
            message = _entered(membership, watch, interrupts, patience, message)
            continue
        if not wanted and membership.is_active:
            membership.leave(why)
        elif why and why.partition(";")[0] != message:
            membership.print_state({"state": "not given", "why": why})
        message = why.partition(";")[0]


def _entered(
    membership: Membership,
    watch: OwnerWatch,
    interrupts: InterruptHandler,
    patience: JoinRetryLimit,
    told: str,
) -> str:
    """What was told last. A grid that is away is waited for: as long as `patience` has it, or for ever where
    it was joined once. Raises InputError, UnavailableError."""
    try:
        membership.enter(lambda: _exit_if_unwanted(watch, interrupts))
    except OwnerIsBackError as back:
        membership.leave(str(back))
        return str(back)
    except UnavailableError as error:
        why = error.message if membership.joined else patience.after(error, time.monotonic())
        if told != why:
            membership.print_state({"state": "the grid is away", "why": why})
        time.sleep(_LOOK_SECONDS)
        return why
    return ""


def _exit_if_unwanted(watch: OwnerWatch, interrupts: InterruptHandler) -> None:
    """Raises OwnerIsBackError."""
    if interrupts.requested:
        raise typer.Exit
    if why := watch.is_back():
        raise OwnerIsBackError(why)


def read_cpus(given: float | None, has: int) -> int | None:
    """CPUs that are given of those that the machine has. Raises InputError for more, and for half ones: Ray
    counts whole ones."""
    if given is not None and not (given <= has and given == int(given)):  # nor what is no number
        raise InputError(
            f"--cpus {given:g} cannot be given: this machine has {show_count(has, 'CPU')}",
            hint="Give whole ones; without --cpus it is all of them.",
        )
    return None if given is None else int(given)


def read_memory(given: str | None, has: int) -> int:
    """Bytes that are given of what the machine has. Raises InputError for more than that."""
    wanted = parse_bytes(given) if given else int(has * _GIVEN_SHARE)
    if not 0 < wanted <= has:
        raise InputError(
            f"--memory {given} cannot be given: this machine has {show_bytes(has)}",
            hint="Leave some to the system: without --memory it is 80 %.",
        )
    if given and wanted < _LEAST_BYTES:
        raise InputError(
            f"--memory {given} is {show_bytes(wanted)}, which no job fits in",
            hint=f"Give {show_bytes(_LEAST_BYTES)} or more, with its unit: 8GiB.",
        )
    return wanted


def head_address(text: str) -> str:
    """HOST:PORT of a grid's head; without a port the one that `gridmill up --ray HOST` takes. Raises
    InputError."""
    host, port = read_address(text, port=GRID_PORT)
    if not port:
        raise InputError(f"{text!r}: nobody is at port 0", hint=f"Without a port it is {GRID_PORT}.")
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def read_rules(idle_only: bool, idle_after: str, hours: str | None) -> IdleRules | None:
    """None where the machine is always given. Raises InputError."""
    rules = IdleRules(after_seconds=parse_seconds(idle_after), hours=read_hours(hours))
    if hours is not None and not idle_only:
        raise InputError("--hours goes with --idle-only", hint="Without it the machine is given all day.")
    return rules if idle_only else None


def read_hours(text: str | None) -> tuple[int, int] | None:
    """FROM-TO, full hours. Raises InputError."""
    if text is None:
        return None
    begin, _, end = text.partition("-")
    if not (begin.isdigit() and end.isdigit() and int(begin) < 24 and int(end) <= 24):
        raise InputError(f"--hours {text!r} is not FROM-TO", hint="Write for example 19-07.")
    return int(begin), int(end) % 24


def _read_token(given: str, known: str) -> str:
    token = sys.stdin.readline().strip() if given == "-" else given or known
    if not token:
        raise InputError("a grid is joined with its token", hint=f"Set {_TOKEN}, or pass --token.")
    return token
