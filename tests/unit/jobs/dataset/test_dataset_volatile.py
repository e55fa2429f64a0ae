"""SQL that gives other values each time, in a dataset that is not computed again, is a warning."""

from dataclasses import replace
from datetime import datetime

import pytest
from tests.kit.dataset_case import DatasetCase

from gridmill.domain.artifact import Artifact
from gridmill.domain.dataset import Basis, DatasetSpec
from gridmill.domain.remarks import remarks_of
from gridmill.jobs.dataset.run import run
from gridmill.jobs.dataset.suspicious_features import volatile_calls


@pytest.mark.parametrize(
    ("sql", "calls"),
    [
        ("SELECT random() AS r, now() - t", ("random()", "now()")),
        ("SELECT * FROM t WHERE day < CURRENT_DATE", ("current_date",)),
        ("SELECT Current_Timestamp, current_timestamp", ("current_timestamp",)),
        ("SELECT RANDOM ()", ("random()",)),
        ("SELECT gen_random_uuid(), today()", ("gen_random_uuid()", "today()")),
        ("SELECT 'now()', \"random()\", 'it''s now()' -- now()\n/* random() */ FROM t", ()),
        ("SELECT random, now, t.random, t.current_date, known() FROM t", ()),
    ],
)
def test_calls_are_told_from_names_texts_and_comments(sql: str, calls: tuple[str, ...]) -> None:
    assert volatile_calls([sql]) == calls


def made(case: DatasetCase, spec: DatasetSpec, *, cache: bool = True) -> list[tuple[str, bool]]:
    context = case.context(spec)
    job = replace(context.order.job, cache=cache)
    output = run(replace(context, order=replace(context.order, job=job))).outputs[0]
    version = Artifact(id="p/d@1", name="p/d", number=1, output=output, fingerprint="")
    return [(one.text, one.warning) for one in remarks_of(version) if "cache" in one.text]


def test_a_cached_dataset_with_random_values_warns_and_one_that_runs_each_time_does_not(tmp_path) -> None:
    case = DatasetCase(tmp_path)
    case.give("tx", {"x": [1.0, 2.0]})
    plain = DatasetSpec(sql="SELECT *, random() AS r FROM tx", tables=("tx",))
    ((text, warning),) = made(case, plain)
    assert text.startswith("random() in SQL gives different values each time")
    assert text.endswith("declare `cache: false` to compute it in each run")
    assert warning
    assert made(case, plain, cache=False) == []
    assert made(case, replace(plain, sql="SELECT * FROM tx")) == []


def test_expressions_of_features_are_looked_at_too(tmp_path) -> None:
    case = DatasetCase(tmp_path)
    case.give("tx", {"x": [1.0, 2.0], "k": ["a", "b"], "t": [datetime(2024, 1, day) for day in (1, 2)]})
    spec = DatasetSpec(
        basis=Basis(table="tx", time="t", entity=("k",)), features={"day": "year(current_date) + x"}
    )
    ((text, _),) = made(case, spec)
    assert text.startswith("current_date in SQL")
