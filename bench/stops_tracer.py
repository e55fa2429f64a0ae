"""Follows the markers of bench.stops through the functions of one process, and writes its stops to a file.

It is loaded when an interpreter starts.
"""

import os
import sys
import threading
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import CodeType, FrameType, FunctionType, MethodType
from typing import Any

from bench.stops import ENDS, FILE, FOLDER, INSIDE, LAST, OTHERS, SPECIFICATION, TOOLS, WAYS

SOURCE = str(Path(__file__).resolve().parents[1] / "src") + os.sep
DEEPEST = 9
_local = threading.local()


class _Call:
    """A call that is active: for each way whether it received the value, and the stops within it so far."""

    __slots__ = ("frame", "received", "within")

    def __init__(self, frame: FrameType, received: tuple[bool, ...]) -> None:
        self.frame = frame
        self.received = received
        self.within: tuple[list[str], ...] = tuple([] for _ in received)


class Tracer:
    """Of one process and what it forks."""

    def __init__(
        self,
        folder: Path,
        markers: dict[str, tuple[str, ...]],
        ends: Mapping[str, Mapping[str, frozenset[str]]],
    ) -> None:
        self._folder = folder
        self._ways = [(way, tuple(marker.encode() for marker in each)) for way, each in markers.items()]
        self._ends = [ends[way] for way in markers]
        self._names: dict[CodeType, str] = {}
        self._done: set[tuple[int, str]] = set()
        self._written: set[tuple[int, str, str]] = set()

    def profile(self, frame: FrameType, event: str, value: Any) -> None:
        """As sys.setprofile calls it."""
        if event not in ("call", "return"):
            return
        name = self._name(frame.f_code)
        if not name:
            return
        calls: list[_Call] = _local.__dict__.setdefault("calls", [])
        if event == "call":
            if frame.f_code.co_flags & 0x20 and frame.f_lasti > 1:
                return  # a generator goes on
            calls.append(
                _Call(frame, tuple(self._receives(frame, number) for number in range(len(self._ways))))
            )
            for number, ends in enumerate(self._ends):
                if calls[-1].received[number] and any(name in some for some in ends.values()):
                    self._hand_over(calls, number, name)
        elif calls and calls[-1].frame is frame:
            self._returned(calls, calls.pop(), name, value)

    def _name(self, code: CodeType) -> str:
        name = self._names.get(code)
        if name is None:
            name = self._names[code] = _name_of(code)
        return name

    def _returned(self, calls: list[_Call], call: _Call, name: str, value: object) -> None:
        for number, (_, marker) in enumerate(self._ways):
            if not call.received[number] or not calls or not holds(value, marker):
                continue
            within = [] if name.startswith(INSIDE) else call.within[number]
            calls[-1].within[number].extend((name, *within))

    def _hand_over(self, calls: list[_Call], number: int, name: str) -> None:
        way, process = self._ways[number][0], _process()
        if name not in self._ends[number].get(process, ()) or (os.getpid(), way) in self._done:
            return
        if name in LAST:
            self._done.add((os.getpid(), way))
        stops: list[str] = []
        for call in calls:
            if call.received[number]:
                stops.append(self._name(call.frame.f_code))
            stops += call.within[number]
            call.within[number].clear()
        path = self._folder / f"{way}.{process}.{os.getpid()}"
        for stop in stops:
            if (os.getpid(), way, stop) not in self._written:
                self._written.add((os.getpid(), way, stop))
                with path.open("a") as file:
                    file.write(f"{stop}\n")

    def _receives(self, frame: FrameType, number: int) -> bool:
        code, marker = frame.f_code, self._ways[number][1]
        several = bool(code.co_flags & 0x04) + bool(code.co_flags & 0x08)  # *given, **named
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + several]
        return holds([frame.f_locals.get(name) for name in names if name != "self"], marker)


def holds(value: Any, markers: tuple[bytes, ...]) -> bool:
    """Whether all markers are in the value, or in what it is made of."""
    return all(_holds(value, marker) for marker in markers)


def _holds(value: Any, marker: bytes, depth: int = 0) -> bool:
    if value is None or isinstance(value, bool | int | float):
        return False
    if isinstance(value, str):
        return marker.decode() in value
    if isinstance(value, bytes | bytearray):
        return marker in value
    if isinstance(value, Path):
        return value.name == FILE and marker.decode() in SPECIFICATION
    return depth < DEEPEST and any(_holds(part, marker, depth + 1) for part in _parts(value))


def _parts(value: Any) -> list[Any]:
    kind = type(value)
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    if isinstance(value, list | tuple | set | frozenset):
        return [*value]
    if isinstance(value, partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, FunctionType):
        return [cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell)]
    if isinstance(value, MethodType):
        return [value.__func__]
    if kind.__name__ == "Transaction":
        return [value.nouns, value.events]
    if (
        kind.__module__.startswith("gridmill.")
        and hasattr(kind, "__dataclass_fields__")
        and kind.__name__ not in OTHERS
    ):
        return [_field(value, name) for name in kind.__dataclass_fields__]
    return []


def _field(value: object, name: str) -> object:
    try:
        return object.__getattribute__(value, name)
    except AttributeError:  # it is being made
        return None


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _name_of(code: CodeType) -> str:
    if not code.co_filename.startswith(SOURCE) or code.co_name.startswith("<"):
        return ""
    module = code.co_filename[len(SOURCE) : -3].replace(os.sep, ".").removesuffix(".__init__")
    if module.startswith(TOOLS):
        return ""
    return f"{module}:{code.co_qualname.replace('.<locals>', '')}"


def _process() -> str:
    main = getattr(sys.modules["__main__"], "__spec__", None)
    name = main.name if main is not None else ""
    return (
        "pod"
        if name.startswith("gridmill.pod")
        else "control"
        if name.startswith("gridmill.embedded")
        else "cli"
    )


def begin() -> None:
    """Follow the markers in this process, if it is one of the measured run's."""
    folder = os.environ.get(FOLDER)
    if folder:
        tracer = Tracer(Path(folder), WAYS, ENDS)
        threading.setprofile(tracer.profile)
        sys.setprofile(tracer.profile)
