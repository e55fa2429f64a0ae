"""The bridge's looks at what is left of pods, without Ray's answers: all at once, and none for too long."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gridmill.ports.site import PodStatus
from gridmill.sites.ray import bridge
from gridmill.sites.ray.bridge import PlacementNote, PlacementNotes
from gridmill.sites.ray.site import _ANSWER_SECONDS

pytest.importorskip("ray", reason="no Ray here: pip install 'gridmill[ray]'")


NODE = "n1"


class Looking(bridge.Bridge):
    """Whose nodes answer for all pods but `hung`."""

    def __init__(self, folder: Path, hung: Sequence[str]) -> None:
        self._notes = PlacementNotes(folder)
        self._futures: dict[str, Any] = {}
        self._left: dict[str, Any] = {}
        self._lost_since: dict[str, float] = {}
        self._groups: dict[str, str] | None = {}
        self.hung, self.did = hung, list[tuple[str, ...]]()

    def _living(self) -> dict[str, dict[str, Any]]:
        return {"alpha": {"NodeID": NODE}}

    def _name(self, pod_or_deployment: str) -> str:
        return pod_or_deployment

    def _ask_what_is_left(self, pod_id: str, note: PlacementNote) -> Any:
        self.did.append(("ask", pod_id))
        return pod_id

    def _ready(self, references: list[Any], seconds: float) -> list[Any]:
        self.did.append(("wait", *references))
        return [one for one in references if one not in self.hung]

    def _read(self, reference: Any) -> Any:
        return PodStatus.GONE.value, "its keeper ended"


def test_what_is_left_of_several_pods_is_asked_for_at_once(tmp_path: Path) -> None:
    notes = PlacementNotes(tmp_path)
    for pod_id in ("a", "b", "c"):
        notes.write(pod_id, PlacementNote(node=NODE, group=pod_id, at=0.0))
    looking = Looking(tmp_path, hung=("a", "b"))
    sights = looking._without_keepers(["a", "b", "c", "never"])
    assert looking.did == [("ask", "a"), ("ask", "b"), ("ask", "c"), ("wait", "a", "b", "c")]
    assert [sights[name].status for name in ("a", "b", "c", "never")] == [
        *(PodStatus.UNKNOWN, PodStatus.UNKNOWN),
        *(PodStatus.GONE, PodStatus.GONE),
    ]
    looking.did.clear()
    looking.hung = ()
    assert {one.status for one in looking._without_keepers(["a", "b"]).values()} == {PodStatus.GONE}
    assert looking.did == [("wait", "a", "b")], "a look that is under way is not asked for twice"


def test_no_request_takes_as_long_as_the_site_waits_for_an_answer() -> None:
    """It ends a bridge that is silent for longer, which then no longer knows since when a node is lost."""
    assert bridge._END_SECONDS + bridge.LEFT_SECONDS < _ANSWER_SECONDS
    assert bridge._POLL_SECONDS + bridge.LEFT_SECONDS < _ANSWER_SECONDS
