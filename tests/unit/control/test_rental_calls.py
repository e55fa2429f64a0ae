from concurrent.futures import Future
from types import SimpleNamespace

from gridmill.control.renting_state import SiteRental
from gridmill.control.steps.rental_calls import DELETE_AGAIN_SECONDS, finish_call
from gridmill.domain.machine import Leftover
from gridmill.scheduler.rental_calls import Action, Call


def test_a_leftover_that_the_last_list_still_names_is_not_deleted_again_at_once():
    left = Leftover(kind="security-group", id="sg-1", region="us-east-1", lease="lease-1", owner="grid-a")
    action = Action(call=Call.DELETE, key="sg-1", leftover=left)
    rental = SiteRental(started=0.0, running={action.id})
    done: Future[None] = Future()
    done.set_result(None)
    finish_call(SimpleNamespace(now=lambda: 100.0), "aws", rental, action, done)
    assert rental.calls().not_before[action.id] == 100.0 + DELETE_AGAIN_SECONDS
    assert action.id not in rental.calls().running
