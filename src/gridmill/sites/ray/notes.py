"""Where each pod was brought up: noted before it is, so that none is ever brought up twice."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from gridmill.codec import decode, encode


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """The Ray node's id, the first pod of its placement group, Unix time, whether it is gone for good, and
    why it is if it never came: as its node had `left` the cluster, or else."""

    node: str
    group: str
    at: float
    over: bool = False
    why: str = ""
    left: bool = False

    def ended(self) -> "Note":
        """The same of a pod that is gone."""
        return replace(self, over=True)


class Notes:
    """One file for each pod id, in the control node's home."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, pod_id: str) -> Note | None:
        """None for a pod that was never brought up here."""
        try:
            return decode((self._folder / pod_id).read_bytes(), Note)
        except FileNotFoundError:
            return None

    def write(self, pod_id: str, note: Note) -> None:
        """Whole or not at all."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft = self._folder / f".{pod_id}"
        draft.write_bytes(encode(note))
        draft.rename(self._folder / pod_id)

    def forget(self, before: float) -> None:
        """Remove notes, from before that time, of pods that are gone for good: nobody asks for these."""
        for pod_id, note in tuple(self._all()):
            if note.over and note.at < before:
                (self._folder / pod_id).unlink(missing_ok=True)

    def known(self) -> tuple[str, ...]:
        """The pods that are noted and not over."""
        return tuple(name for name, note in self._all() if not note.over)

    def beside(self, note: Note) -> tuple[Note, ...]:
        """Those of the same placement group, itself included."""
        return tuple(other for _, other in self._all() if other.group == note.group)

    def _all(self) -> Iterator[tuple[str, Note]]:
        for path in sorted(self._folder.glob("[!.]*")):
            note = self.read(path.name)
            if note is not None:
                yield path.name, note
