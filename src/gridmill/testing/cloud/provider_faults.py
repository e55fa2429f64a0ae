"""The faults of a simulated provider."""

from collections.abc import Mapping
from dataclasses import field
from math import inf

from gridmill.domain.frozen import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderFaults:
    """The faults of a simulated provider. The probabilities are between 0 and 1, and apply to each call or
    each machine. The default has no faults.

    The first group is about calls:

    - `server_errors`: the call fails with a server error and has no effect.
    - `lost_answers`: the call has its effect, and then fails.
    - `lag_seconds`: the longest time by which a list is late. Each entry of each list has its own delay.
    - `no_machine`: the (zone, type) pairs without a free machine. The type `*` means all types.
    - `ignored_terminates`: the call succeeds, but the machine continues to run.
    - `detach_seconds`: how long groups and volumes remain in use after the end of their machine.

    The second group is about machines:

    - `boot_seconds`: the shortest and the longest time from the launch to an SSH server that answers.
    - `slow_boots`: machines that need ten times as long.
    - `silent_boots`: machines whose SSH server never answers. Their first script runs.
    - `dead_boots`: machines that never start. Nothing runs on them, so that they cannot end themselves.
    - `dies_per_hour`: how many machines end within an hour because of a defect.
    - `hangs_per_hour`: how many machines stop working within an hour. The provider still reports these
      machines as running.
    - `interrupts_per_hour`: how many spot machines the provider ends within an hour.
    - `bad_shutdowns`: machines for which a shutdown inside the machine stops the machine, but does not end
      the rental.
    - `orphaned_volumes`: machines whose volume exists after their end.
    """

    server_errors: float = 0.0
    lost_answers: float = 0.0
    lag_seconds: float = 0.0
    no_machine: frozenset[tuple[str, str]] = frozenset()
    ignored_terminates: float = 0.0
    detach_seconds: float = 0.0
    boot_seconds: tuple[float, float] = (30.0, 60.0)
    slow_boots: float = 0.0
    silent_boots: float = 0.0
    dead_boots: float = 0.0
    dies_per_hour: float = 0.0
    hangs_per_hour: float = 0.0
    interrupts_per_hour: float = 0.0
    bad_shutdowns: float = 0.0
    orphaned_volumes: float = 0.0
    calls_per_second: float = inf
    call_burst: int = 20
    next_faults: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The faults of the next calls, by the name of the method: `before` (no effect), `after` (the answer is
    lost) or `none`."""


class TokenBucket:
    """Limits the rate of calls. The bucket holds up to `burst` tokens, and `rate` tokens are added in each
    second."""

    def __init__(self, rate: float, burst: int) -> None:
        self._rate, self._burst = rate, burst
        self._tokens, self._at = float(burst), -inf

    def limit(self, rate: float, burst: int) -> None:
        """Changes the limits from now on."""
        self._rate, self._burst, self._tokens = rate, burst, min(self._tokens, burst)

    def take(self, now: float) -> bool:
        """Takes a token, and returns False if there is none."""
        if self._rate == inf:
            self._tokens, self._at = float(self._burst), now
            return True
        if self._at > -inf:
            self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate)
        self._at = now
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True
