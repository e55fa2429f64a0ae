"""Secrets in a control node: added, replaced, listed without values, refused while in use, rotated."""

from pathlib import Path

import pytest

from gridmill.auth.vault import make
from gridmill.codec import encode
from gridmill.control.usecases.service import Identity, Service
from gridmill.domain.command import CommandSpec
from gridmill.domain.frozen import replace
from gridmill.domain.job import Job
from gridmill.domain.pipeline import Pipeline, PipelineSource
from gridmill.domain.secret import Secret
from gridmill.domain.site import Site, SiteKind
from gridmill.domain.states import RunState
from gridmill.errors import ConflictError, InputError, NotFoundError, StorageError
from gridmill.stores import memory
from gridmill.testing.simulation import Behaviour, Simulation

VALUE = "hunter2-is-a-value"


@pytest.fixture
def cases(tmp_path: Path) -> Service:
    simulation = Simulation(store=memory.make(), behave=lambda order: Behaviour())
    simulation.declare_site()
    simulation.node.control.ledger.load()
    simulation.node.control.vault = make(tmp_path / "secrets.key")
    identity = Identity(version="", home="", address="", embedded=True)
    return Service(simulation.node, identity, render=str, end=str)


def records(cases: Service) -> list[Secret]:
    return [one.noun for one in cases._ledger.store.list(Secret)]


def pipeline(value: str = "${secret:db}") -> Pipeline:
    return Pipeline(name="shop", jobs=(Job(name="a", command=CommandSpec(run="true", env={"PW": value})),))


def test_a_secret_is_added_replaced_and_resolved(cases: Service):
    first = cases.add_secret("db", VALUE)
    assert (first.version, first.used_by, first.problem) == (1, (), "")
    assert cases.add_secret("db", VALUE) == first, "the same value changes nothing"
    second = cases.add_secret("db", VALUE + "!")
    assert (second.version, second.created) == (2, first.created)
    assert cases._control.secrets.resolve("db") == VALUE + "!"


def test_no_answer_and_no_record_contains_a_value(cases: Service):
    cases.add_secret("db", VALUE)
    for answer in (cases.secrets(), cases.secret("db"), records(cases)):
        assert VALUE.encode() not in encode(answer)


def test_unknown_secrets_and_wrong_values_are_refused(cases: Service):
    for call in (
        lambda: cases.secret("db"),
        lambda: cases.remove_secret("db"),
        lambda: cases._control.secrets.resolve("db"),
    ):
        with pytest.raises(NotFoundError, match="no secret 'db'"):
            call()
    with pytest.raises(InputError, match="cannot be the name of a secret"):
        cases.add_secret("Not A Name", VALUE)
    with pytest.raises(InputError, match="at least 4"):
        cases.add_secret("db", "abc")
    assert records(cases) == []


def test_a_secret_in_use_is_removed_only_by_force(cases: Service):
    cases.add_secret("db", VALUE)
    cases.apply(pipeline())
    site = Site(name="farm", kind=SiteKind.SIMULATED, settings={"key": "${secret:db}"})
    with cases._node.changing() as transaction:
        transaction.put(site)
    assert cases.secret("db").used_by == ("pipeline shop", "site farm")
    with pytest.raises(ConflictError, match="pipeline shop, site farm use the secret 'db'") as caught:
        cases.remove_secret("db")
    assert "--force" in caught.value.hint
    cases.remove_secret("db", force=True)
    assert records(cases) == []


def test_a_removed_reference_frees_the_secret(cases: Service):
    cases.add_secret("db", VALUE)
    cases.apply(pipeline())
    cases.apply(pipeline("plain"))
    cases.remove_secret("db")


def test_pages_of_secrets(cases: Service):
    for name in "cab":
        cases.add_secret(name, VALUE)
    page = cases.secrets(limit=2)
    assert [one.name for one in page.items] == ["a", "b"]
    assert [one.name for one in cases.secrets(limit=2, cursor=page.next_cursor).items] == ["c"]


def test_a_store_without_its_key_shows_the_problem_and_takes_the_value_again(cases: Service, tmp_path: Path):
    cases.add_secret("db", VALUE)
    (tmp_path / "secrets.key").unlink()
    assert "key file does not exist" in cases.secret("db").problem
    with pytest.raises(StorageError, match="secret db"):
        cases._control.secrets.resolve("db")
    assert cases.add_secret("db", VALUE).problem == ""


def test_the_key_is_rotated(cases: Service, tmp_path: Path):
    for name in "ab":
        cases.add_secret(name, VALUE + name)
    old = (tmp_path / "secrets.key").read_text()
    done = cases.rotate_secret_key()
    assert done.secrets == 2
    assert {one.key_id for one in records(cases)} == {done.key_id}
    assert [(one.version, cases._control.secrets.resolve(one.name)) for one in records(cases)] == [
        (1, VALUE + "a"),
        (1, VALUE + "b"),
    ]
    assert old not in (tmp_path / "secrets.key").read_text()


def test_a_crash_during_a_rotation_loses_no_value(cases: Service):
    cases.add_secret("a", VALUE)
    cases._control.vault.add_key()  # the process was killed here, before the commit
    assert cases._control.secrets.resolve("a") == VALUE
    cases.rotate_secret_key()
    assert cases._control.secrets.resolve("a") == VALUE


def test_a_rotation_is_refused_if_a_value_cannot_be_decrypted(cases: Service, tmp_path: Path):
    cases.add_secret("a", VALUE)
    (tmp_path / "secrets.key").rename(tmp_path / "kept")
    cases.add_secret("b", VALUE)
    before = (tmp_path / "secrets.key").read_text()
    with pytest.raises(StorageError, match="secret a"):
        cases.rotate_secret_key()
    assert (tmp_path / "secrets.key").read_text() == before


def from_file(value: str, file: str = "shop.yaml") -> Pipeline:
    lines = {"jobs.a.command.env.PW": 7}
    return replace(pipeline(value), written=PipelineSource(text="", file=file, lines=lines))


def test_apply_refuses_a_reference_to_an_unknown_secret_with_its_line(cases: Service):
    cases.add_secret("password", VALUE)
    with pytest.raises(InputError, match=r"shop\.yaml:7: jobs\.a\.command\.env\.PW: .*'pasword'") as caught:
        cases.apply(from_file("${secret:pasword}"))
    assert caught.value.hint.startswith("Did you mean `password`?")
    assert cases._ledger.look_up(Pipeline, "shop") is None


def test_resume_refuses_a_job_whose_secret_was_removed(cases: Service):
    cases.add_secret("db", VALUE)
    run = cases.start_run(from_file("${secret:db}"))
    cases.stop_run(run.run.id)
    cases._node.tick()
    cases.remove_secret("db", force=True)
    with pytest.raises(InputError, match=r"shop\.yaml:7: jobs\.a\.command\.env\.PW: .*'db'"):
        cases.resume(run.run.id)
    assert cases.run(run.run.id).run.state is RunState.STOPPED
    cases.add_secret("db", VALUE)
    assert cases.resume(run.run.id).run.state is RunState.ACTIVE
