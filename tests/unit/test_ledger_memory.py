"""What a ledger has written is looked up without the store, but not believed when the store disagrees."""

import pytest

from gridmill.control.ledger import REMEMBERED, Ledger
from gridmill.domain.artifact import Latest
from gridmill.domain.provenance import Provenance
from gridmill.errors import StaleVersionError
from gridmill.ports.store import Delete, Noun, Put
from gridmill.stores.memory import make


def latest(run: str, name: str = "p/j") -> Latest:
    return Latest(name=name, artifact=f"{name}@1", run=run, order=1)


def provenance(artifact: str) -> Provenance:
    return Provenance(name="p/j", fingerprint="f", format=1, code="", created=0.0, artifact=artifact)


def commit(ledger: Ledger, *nouns: Noun) -> None:
    transaction = ledger.begin(1.0)
    transaction.put(*nouns)
    ledger.commit(transaction)


def ledger_of() -> Ledger:
    ledger = Ledger(make())
    ledger.load()
    return ledger


def test_what_was_written_is_changed_without_a_look_at_the_store():
    ledger = ledger_of()
    for number in range(3):
        assert ledger.look_up(Latest, "p/j") == (latest(f"p-{number - 1}") if number else None)
        commit(ledger, latest(f"p-{number}"))
    record = ledger.store.get(Latest, "p/j")
    assert record is not None
    assert (record.noun, record.version) == (latest("p-2"), 3)


def test_what_another_wrote_is_found_out_by_the_commit_and_read_again():
    ledger = ledger_of()
    commit(ledger, latest("p-1"))
    ledger.store.commit([Put(noun=latest("p-2"), expected=1)])
    assert ledger.look_up(Latest, "p/j") == latest("p-1")
    with pytest.raises(StaleVersionError):
        commit(ledger, latest("p-3"))
    assert ledger.doubtful
    ledger.load()
    assert ledger.look_up(Latest, "p/j") == latest("p-2")
    commit(ledger, latest("p-3"))


def test_what_cleaning_deletes_beside_the_ledger_is_read_from_the_store():
    ledger = ledger_of()
    commit(ledger, provenance(""))
    assert ledger.look_up(Provenance, provenance("").id) == provenance("")
    commit(ledger, provenance("p/j@1"))
    ledger.store.commit([Delete(noun=Provenance, key=provenance("").id, expected=2)])
    assert ledger.look_up(Provenance, provenance("").id) is None


def test_only_so_many_are_remembered():
    ledger = ledger_of()
    commit(ledger, *(latest("p-1", name=f"p/j{number}") for number in range(REMEMBERED + 10)))
    ledger.store.commit([Put(noun=latest("p-2", name="p/j0"), expected=1)])
    assert ledger.look_up(Latest, "p/j0") == latest("p-2", name="p/j0")
