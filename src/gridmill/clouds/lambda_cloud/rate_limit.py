"""The rate at which Lambda Cloud is called.

Source: "Rate limiting" in the documentation of the Lambda Cloud API: one request per second, and one request
to launch machines per 12 seconds. The limits apply to an account, not to a process: if a second control node
of the account uses them up, the provider refuses calls. Then no call is sent for the time that the provider
states.
"""

import threading
import time
from collections.abc import Callable

from gridmill.errors import UnavailableError

CALL_SECONDS, LAUNCH_SECONDS = 1.05, 12.5
"""The time between two calls, and between two launches: a little more than the limits, because the time for
the transmission of a request varies."""
LONGEST_WAIT_SECONDS = 30.0
"""If a call had to wait longer, it fails, and the control node repeats it."""


class RateLimit:
    """Delays calls so that they observe the limits. Several threads use one object, in the order of their
    calls. `monotonic` is a clock in seconds, and `pause` waits for a number of seconds."""

    def __init__(
        self,
        monotonic: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self.monotonic, self.pause = monotonic, pause
        self._lock = threading.Lock()
        # an earlier process may have sent a call just before it ended
        self._next_call = monotonic() + CALL_SECONDS
        self._next_launch = monotonic() + LAUNCH_SECONDS
        self._waiting = 0
        """The number of launches that wait."""

    def wait(self, place: str, *, is_launch: bool = False) -> None:
        """Wait until a call may be sent. Raises UnavailableError if the wait would be too long."""
        if is_launch:
            self._wait_for_launch(place)
        else:
            self._wait_until(self._call_turn(place))

    def hold(self, seconds: float, *, is_launch: bool = False) -> None:
        """Send no call, or no launch, for the next seconds, because the provider has refused one."""
        until = self.monotonic() + seconds
        with self._lock:
            if is_launch:
                self._next_launch = max(self._next_launch, until)
            else:
                self._next_call = max(self._next_call, until)

    def _wait_for_launch(self, place: str) -> None:
        with self._lock:
            _turn(self._next_launch + self._waiting * LAUNCH_SECONDS, self.monotonic(), place)
            self._waiting += 1
        try:
            while (turn := self._launch_turn(place)) is None:
                self._wait_until(self._next_launch)
        finally:
            with self._lock:
                self._waiting -= 1
        self._wait_until(turn)

    def _launch_turn(self, place: str) -> float | None:
        """Return the time of a launch, or None if no launch is permitted now. A launch reserves no time in
        advance, so that other calls are sent between two launches."""
        with self._lock:
            now = self.monotonic()
            if now < self._next_launch:
                return None
            turn = _turn(self._next_call, now, place)
            self._next_call, self._next_launch = turn + CALL_SECONDS, turn + LAUNCH_SECONDS
        return turn

    def _call_turn(self, place: str) -> float:
        with self._lock:
            turn = _turn(self._next_call, self.monotonic(), place)
            self._next_call = turn + CALL_SECONDS
        return turn

    def _wait_until(self, turn: float) -> None:
        seconds = turn - self.monotonic()
        if seconds > 0:
            self.pause(seconds)


def _turn(free: float, now: float, place: str) -> float:
    turn = max(free, now)
    if turn - now > LONGEST_WAIT_SECONDS:
        raise UnavailableError(
            f"the rate limit of Lambda Cloud is reached: the next call is permitted in {turn - now:.0f} s",
            hint="Gridmill repeats the call.",
            place=place,
        )
    return turn
