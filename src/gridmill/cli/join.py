"""The command `join` makes this machine a provider node of a grid, either always or while its owner is
away."""

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
_POLL_SECONDS = 1.0
_GIVEN_SHARE = 0.8
_LEAST_BYTES = 256 * MIB
"""The smallest memory of a job, in bytes. A machine that offers less memory gets no job."""


def join(
    context: typer.Context,
    address: Annotated[
        str,
        typer.Argument(metavar="HOST[:PORT]", help="Address of the grid, which `gridmill up --ray` prints."),
    ],
    token: Annotated[
        str,
        typer.Option(
            help=f"Token of the grid. Better set it in {_TOKEN}, or pass `-` to read it from standard input."
        ),
    ] = "",
    cpus: Annotated[float | None, typer.Option(min=1, help="Number of CPUs to lend. Default: all.")] = None,
    memory: Annotated[
        str | None, typer.Option(help="Memory to lend, for example 8GiB. Default: 80 %.")
    ] = None,
    idle_only: Annotated[
        bool, typer.Option("--idle-only", help="Lend the machine only while its owner does not use it.")
    ] = False,
    idle_after: Annotated[
        str, typer.Option(help="Time without activity of the owner after which the machine is lent.")
    ] = "5m",
    hours: Annotated[
        str | None,
        typer.Option(
            metavar="FROM-TO", help="Lend the machine only at these hours (local time), for example 19-07."
        ),
    ] = None,
    wait: Annotated[str, typer.Option(help="Time for which the command retries to reach the grid.")] = "2m",
    json: Json = False,
) -> None:
    """Make this machine a provider node of a grid, until Ctrl-C.

    With --idle-only, the machine is lent when its owner has not used it for the time --idle-after. When the
    owner uses the machine again, the jobs on the machine end within seconds and continue on another machine
    from their last checkpoint. If the machine was a node of the grid before and the grid cannot be reached,
    the command waits until it can reach the grid again.
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
    """The membership of this machine in the grid, with methods to join and to leave the grid."""

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
        """Return True while this machine is a node of the grid."""
        return self._node is not None and self._node.up

    def enter(self, beat: Callable[[], None]) -> None:
        """Add this machine to the grid. The function `beat` is called during the join and may raise an
        error.

        Raises the errors of `beat` and of Provider.join. After an error, no process of the grid runs on this
        machine.
        """
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
        """Return the memory to lend, in bytes. If the machine has an owner, it lends at most the memory that
        the owner does not use now."""
        if not self._behind:
            return self._memory
        machine = self.machine
        return spare_bytes(self._memory, memory_bytes=machine.memory_bytes(), used_bytes=machine.used_bytes())

    def leave(self, why: str = "") -> None:
        """Remove the node from the grid, then end its remaining jobs. With `why`, also print that the
        machine is returned to its owner. The text is printed as soon as the machine is no longer a node. If
        the machine is not in the grid, the method does nothing."""
        node, self._node = self._node, None
        if node is None:
            return
        node.leave()
        if why:
            self.print_state({"state": "returned to its owner", "why": why})
        node.clear()


class JoinRetryLimit:
    """The limit for retries of the first join: retries end `seconds` after the first failure to reach the
    grid."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._since: float | None = None

    def after(self, error: UnavailableError, now: float) -> str:
        """Return the message to print before the next try to join the grid. When the time for retries is
        over, the method raises an UnavailableError with the last message."""
        self._since = now if self._since is None else self._since
        if now < self._since + self._seconds:
            return f"{error.message}; retrying for {show_seconds(self._seconds)}"
        tried = f" within {show_seconds(self._seconds)}" if self._seconds else ""
        raise UnavailableError(
            f"the grid could not be joined{tried}: {error.message}", hint=error.hint
        ) from error


class OwnerIsBackError(Exception):
    """The exception that is raised if the owner uses the machine again while the machine is joining the
    grid."""


class OwnerWatch:
    """Detects whether the owner of a machine uses it, and decides when the machine is lent. Without rules,
    the machine is always lent."""

    def __init__(self, machine: Provider, rules: IdleRules | None) -> None:
        self._machine, self._rules = machine, rules
        self._presence = OwnerPresence(seen=time.monotonic())
        self._lent_at: float | None = None

    def why_blind(self) -> str:
        """Return the reason why some activity of the owner may not be detected. The result is empty if all
        activity can be detected, or if there are no rules."""
        if self._rules is None:
            return ""
        self._machine.seconds_since_input()
        return self._machine.why_blind()

    def is_back(self) -> str:
        """Return the activity of the owner of a lent machine as text. The text is empty if there is no
        activity. The method takes a second, or no time if there are no rules."""
        return "" if self._rules is None else self.look(is_lent=True)[1]

    def look(self, *, is_lent: bool) -> tuple[bool, str]:
        """Return whether to lend the machine, and the reason if it is not lent.

        The method takes a second, unless there are no rules and `is_lent` is False.
        """
        if self._rules is None:
            if is_lent:
                time.sleep(_POLL_SECONDS)
            return True, ""
        machine, rules = self._machine, self._rules
        utilization = machine.look(_POLL_SECONDS)
        now = time.monotonic()
        seconds = machine.seconds_since_input()
        self._presence = note(
            self._presence,
            utilization,
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
    """Keep the machine in the grid until the user presses Ctrl-C. If the machine is not in the grid and may
    be lent, let it join the grid again."""
    watch = OwnerWatch(membership.machine, rules)
    if why_blind := watch.why_blind():
        membership.print_state({"state": "the owner's activity may not be visible", "why": why_blind})
    message = ""
    while not interrupts.requested:
        wanted, why = watch.look(is_lent=membership.is_active)
        if wanted and not membership.is_active:
            message = _entered(membership, watch, interrupts, patience, message)
            continue
        if not wanted and membership.is_active:
            membership.leave(why)
        elif why and why.partition(";")[0] != message:
            membership.print_state({"state": "not lent", "why": why})
        message = why.partition(";")[0]


def _entered(
    membership: Membership,
    watch: OwnerWatch,
    interrupts: InterruptHandler,
    patience: JoinRetryLimit,
    told: str,
) -> str:
    """Join the grid, and return the last message that was printed. If the grid cannot be reached, retry:
    within the limit of `patience`, or without limit if this machine joined the grid before. Raises
    InputError, UnavailableError."""
    try:
        membership.enter(lambda: _exit_if_unwanted(watch, interrupts))
    except OwnerIsBackError as back:
        membership.leave(str(back))
        return str(back)
    except UnavailableError as error:
        why = error.message if membership.joined else patience.after(error, time.monotonic())
        if told != why:
            membership.print_state({"state": "the grid is unreachable", "why": why})
        time.sleep(_POLL_SECONDS)
        return why
    return ""


def _exit_if_unwanted(watch: OwnerWatch, interrupts: InterruptHandler) -> None:
    """Raise OwnerIsBackError if the owner is back."""
    if interrupts.requested:
        raise typer.Exit
    if why := watch.is_back():
        raise OwnerIsBackError(why)


def read_cpus(given: float | None, has: int) -> int | None:
    """Return the number of CPUs to lend. Raises InputError if the machine has fewer CPUs, and for fractions,
    because Ray counts only whole CPUs."""
    # written as a negation, because NaN fails every comparison and has to be refused too
    if given is not None and not (given <= has and given == int(given)):
        raise InputError(
            f"--cpus {given:g} cannot be lent: this machine has {show_count(has, 'CPU')}",
            hint="Pass a whole number of CPUs. Without --cpus, all CPUs are lent.",
        )
    return None if given is None else int(given)


def read_memory(given: str | None, has: int) -> int:
    """Return the bytes of memory to lend. Raises InputError if the machine has less memory, or if no job
    fits into this memory."""
    wanted = parse_bytes(given) if given else int(has * _GIVEN_SHARE)
    if not 0 < wanted <= has:
        raise InputError(
            f"--memory {given} cannot be lent: this machine has {show_bytes(has)}",
            hint="Leave memory for the system. Without --memory, 80 % is lent.",
        )
    if given and wanted < _LEAST_BYTES:
        raise InputError(
            f"--memory {given} is {show_bytes(wanted)}: no job fits into it",
            hint=f"Pass at least {show_bytes(_LEAST_BYTES)}, with a unit, for example --memory 8GiB.",
        )
    return wanted


def head_address(text: str) -> str:
    """Return HOST:PORT of the head of a grid. The default port is the port on which `gridmill up --ray HOST`
    listens. Raises InputError."""
    host, port = read_address(text, port=GRID_PORT)
    if not port:
        raise InputError(
            f"{text!r}: 0 is not a port of a grid", hint=f"Leave the port out: the default is {GRID_PORT}."
        )
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def read_rules(idle_only: bool, idle_after: str, hours: str | None) -> IdleRules | None:
    """Return the rules for lending the machine, or None if the machine is always lent. Raises InputError."""
    rules = IdleRules(after_seconds=parse_seconds(idle_after), hours=read_hours(hours))
    if hours is not None and not idle_only:
        raise InputError(
            "--hours needs --idle-only",
            hint="Add --idle-only. Without --idle-only, the machine is lent all day.",
        )
    return rules if idle_only else None


def read_hours(text: str | None) -> tuple[int, int] | None:
    """Parse a range FROM-TO of full hours. Raises InputError."""
    if text is None:
        return None
    begin, _, end = text.partition("-")
    if not (begin.isdigit() and end.isdigit() and int(begin) < 24 and int(end) <= 24):
        raise InputError(
            f"--hours {text!r} is not FROM-TO", hint="Write full hours, for example --hours 19-07."
        )
    return int(begin), int(end) % 24


def _read_token(given: str, known: str) -> str:
    token = sys.stdin.readline().strip() if given == "-" else given or known
    if not token:
        raise InputError("the token of the grid is missing", hint=f"Set {_TOKEN}, or pass --token.")
    return token
