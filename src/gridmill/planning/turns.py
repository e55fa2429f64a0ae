"""Whose turn it is among jobs that make the same artifact: at most one of them runs at a time."""

from bisect import insort

from gridmill.planning.queue import Rank


class Turns:
    """Jobs by the name of what they make: those that run, and those that wait in order of rank."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[Rank]] = {}
        self._running: dict[str, set[str]] = {}
        self._known: dict[str, tuple[str, Rank | None]] = {}

    def wait(self, name: str, job_run_id: str, rank: Rank) -> None:
        """The job waits for its turn."""
        if self._known.get(job_run_id) != (name, rank):
            self.leave(job_run_id)
            self._known[job_run_id] = (name, rank)
            insort(self._waiting.setdefault(name, []), rank)

    def run(self, name: str, job_run_id: str) -> None:
        """The job runs: nobody else's turn."""
        self.leave(job_run_id)
        self._known[job_run_id] = (name, None)
        self._running.setdefault(name, set()).add(job_run_id)

    def leave(self, job_run_id: str) -> None:
        """The job neither waits nor runs."""
        known = self._known.pop(job_run_id, None)
        if known is None:
            return
        name, rank = known
        if rank is None:
            self._running[name].discard(job_run_id)
            if not self._running[name]:
                del self._running[name]
        else:
            self._waiting[name].remove(rank)
            if not self._waiting[name]:
                del self._waiting[name]

    def next(self, name: str) -> str | None:
        """The job that may start; None while one runs, or none waits."""
        if name in self._running or name not in self._waiting:
            return None
        return self._waiting[name][0][4]

    def before(self, name: str, job_run_id: str) -> str | None:
        """The job that this one lets pass: one that runs, else the first that waits. None: it is next."""
        running = self._running.get(name)
        if running:
            return min(running)
        first = self.next(name)
        return None if first == job_run_id else first

    def behind(self, name: str) -> tuple[str, ...]:
        """The jobs that wait, in order."""
        return tuple(rank[4] for rank in self._waiting.get(name, ()))
