"""`gridmill join`: what is tried again, for how long, and what is refused at once."""

import socket
from pathlib import Path

import pytest
from tests.kit.ports import free_port

from gridmill.bootstrap.loose_machines import LocalProvider
from gridmill.cli.join import JoinRetryLimit, Membership, _stay_joined, head_address, read_memory
from gridmill.cli.session import InterruptHandler
from gridmill.domain.amounts import GIB, MIB
from gridmill.errors import InputError, StorageError, UnavailableError
from gridmill.sites.ray.cluster import join, refusal, token_file, want_own
from gridmill.sites.ray.site import speaks

LOG = Path("ray.log")
DEADLINE = """
[2026-11-22 04:05:06,007 W 1 1] gcs_client.cc: Failed to get cluster ID from GCS server: Deadline Exceeded
ray.exceptions.RpcError: Deadline Exceeded
"""


class Machine(Membership):
    """One whose Ray says that to each try, and then joins. Ctrl-C is pressed when it has."""

    def __init__(self, interrupts: InterruptHandler, *says: str) -> None:
        self.told: list[dict[str, str]] = []
        super().__init__(
            LocalProvider(), Path(), "10.0.0.1:6379", "", None, 1, behind=False, tell=self.told.append
        )
        self.says, self.interrupts = list(says), interrupts

    def enter(self, interrupts: InterruptHandler) -> None:
        if self.says:
            raise refusal(self.says.pop(0), LOG)
        self.joined = self.interrupts.requested = True


def test_a_head_that_does_not_answer_in_time_is_tried_again() -> None:
    interrupts = InterruptHandler()
    machine = Machine(interrupts, DEADLINE)
    _stay_joined(machine, None, interrupts, JoinRetryLimit(3600.0))
    assert machine.joined
    [told] = machine.told
    assert told["state"] == "the grid is unreachable"
    assert told["why"].endswith("Deadline Exceeded; retrying for 1 h 00 m")


@pytest.mark.parametrize(
    ("says", "error"),
    [
        ("grpc: Unauthenticated: InvalidAuthToken", "does not accept this token"),
        (
            "RuntimeError: Version mismatch: The cluster was started with:\n Ray: 2.1\n",
            "another version of Ray",
        ),
    ],
)
def test_what_trying_again_does_not_help_is_refused_at_once(says: str, error: str) -> None:
    interrupts = InterruptHandler()
    machine = Machine(interrupts, says)
    with pytest.raises(InputError, match=error):
        _stay_joined(machine, None, interrupts, JoinRetryLimit(3600.0))
    assert not machine.told


def test_another_ray_is_told_from_ours() -> None:
    said = """RuntimeError: Version mismatch: The cluster was started with:
    Ray: 2.60.0
    Python: 3.11.7
This process on node 10.0.0.3 was started with:
    Ray: 2.59.0
    Python: 3.11.8
"""
    assert refusal(said, LOG).message.endswith(
        "than the grid: it has Ray 2.60.0 and Python 3.11.7, this machine Ray 2.59.0 and Python 3.11.8"
    )


@pytest.mark.parametrize(
    ("text", "head"),
    [
        ("10.0.0.5", "10.0.0.5:6379"),
        ("node:7000", "node:7000"),
        ("[::1]", "[::1]:6379"),
        ("[::1]:7", "[::1]:7"),
    ],
)
def test_a_head_without_a_port_is_at_the_usual_one(text: str, head: str) -> None:
    assert head_address(text) == head


@pytest.mark.parametrize(
    ("text", "hint"),
    [("[::1", "10.0.0.5:6379"), ("[:]:1", "10.0.0.5:6379"), ("::1", "[::1]:6379"), ("node:0", "6379")],
)
def test_what_no_head_can_be_at_is_refused(text: str, hint: str) -> None:
    with pytest.raises(InputError) as told:
        head_address(text)
    assert hint in told.value.hint


@pytest.mark.parametrize(
    ("given", "error"), [("8", "8 B: no job fits into it"), ("9GiB", "has 8 GiB"), ("-1GiB", "not a size")]
)
def test_memory_that_cannot_be_given_is_refused(given: str, error: str) -> None:
    with pytest.raises(InputError, match=error):
        read_memory(given, 8 * GIB)
    assert read_memory("256MiB", 8 * GIB) == 256 * MIB


def test_a_home_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="cannot be created"):
        token_file(tmp_path / "file" / "node")


def test_a_head_is_at_an_address_of_this_machine() -> None:
    want_own("127.0.0.1")
    for host in ("192.0.2.1", "nobody.invalid"):
        with pytest.raises(InputError, match=f"{host} is not an address of this machine"):
            want_own(host)


def test_patience_ends_so_long_after_the_first_failure() -> None:
    patience, error = JoinRetryLimit(60.0), UnavailableError("nothing answers", hint="Is it up?")
    assert patience.after(error, 100.0) == "nothing answers; retrying for 1 m 00 s"
    assert patience.after(error, 159.0)
    with pytest.raises(UnavailableError) as caught:
        patience.after(error, 160.0)
    told = "the grid could not be joined within 1 m 00 s: nothing answers"
    assert (caught.value.message, caught.value.hint) == (told, "Is it up?")
    with pytest.raises(UnavailableError, match="could not be joined: nothing answers"):
        JoinRetryLimit(0.0).after(error, 0.0)


def test_who_listens_and_says_nothing_may_still_be_a_head() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(TimeoutError):
        speaks("127.0.0.1", server.getsockname()[1], 0.05)


def test_a_port_at_which_nobody_listens_is_worth_another_try(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="no Ray here: pip install 'gridmill[ray]'")
    with pytest.raises(UnavailableError, match="nothing answers"):
        join(tmp_path, f"127.0.0.1:{free_port()}", "t")
