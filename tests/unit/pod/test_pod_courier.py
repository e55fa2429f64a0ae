"""The courier: what the selector watches is the link's, never what came after it."""

import os
import selectors
from pathlib import Path

from gridmill.domain.amounts import Amounts
from gridmill.domain.pod_protocol import PodOrder, Stop, Welcome
from gridmill.pod.agent import ControlLink
from gridmill.pod.journal import Journal


class LastWords:
    """A link that closes itself while it hands over the last it heard."""

    def __init__(self):
        self.reading, self.writing = os.pipe()

    def connect(self):
        return True

    def send(self, messages):
        return True

    def fileno(self):
        return self.reading

    def receive(self):
        self.close()
        return [Welcome(acknowledged=0), Stop(attempt_id="p-1.j.1", reason="r")]

    def pending(self):
        return False

    def flush(self):
        return True

    def close(self):
        if self.reading is not None:
            os.close(self.reading)
            os.close(self.writing)
            self.reading = None


def test_a_descriptor_given_again_is_not_taken_for_the_closed_links(tmp_path: Path) -> None:
    order = PodOrder(
        pod_id="r-1.0",
        deployment_id="r-1",
        type="command",
        secret="s",
        home=str(tmp_path),
        link="unix:x",
        capacity=Amounts(cpus=1),
        keep_seconds=1.0,
    )
    link, selector = LastWords(), selectors.DefaultSelector()
    before = link.reading
    journal = Journal(tmp_path / "journal")
    courier = ControlLink(link=link, order=order, journal=journal, selector=selector, attempts=dict, now=0.0)
    assert [type(message) for message in courier.turn(0.0)] == [Stop]
    again, other = os.pipe()
    assert again == before
    selector.register(again, selectors.EVENT_READ)  # a job's output
    courier.deliver(1.0)
    courier.turn(1.0)
    assert selector.get_key(again).events == selectors.EVENT_READ
    os.close(again)
    os.close(other)
    journal.close()
