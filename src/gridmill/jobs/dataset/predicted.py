"""Predictions as tables of a dataset: known with the row they are of; the truth stays aside. Pure."""

from collections.abc import Mapping
from dataclasses import replace

from gridmill.jobs.engine import quoted
from gridmill.model.artifact import Output
from gridmill.model.dataset import AsOfJoin, Basis, DatasetSpec, Join

ASIDE = ("row", "truth", "fold")
"""Columns of a prediction that are no features unless they are named."""


def with_predictions(spec: DatasetSpec, predictions: Mapping[str, Output]) -> DatasetSpec:
    """The declaration with what goes without saying of these tables: which columns are meant, and that
    joined rows were known just before their own time, being made from what was known before it."""
    if not predictions:
        return spec
    basis = spec.basis
    if basis is not None and basis.table in predictions:
        basis = _basis(basis, predictions[basis.table])
    return replace(
        spec,
        basis=basis,
        joins=tuple(
            _joined(join, predictions[join.table]) if join.table in predictions else join
            for join in spec.joins
        ),
        asof_joins=tuple(
            _as_of(asof, predictions[asof.table]) if asof.table in predictions else asof
            for asof in spec.asof_joins
        ),
    )


def _basis(basis: Basis, output: Output) -> Basis:
    columns = tuple(column.name for column in output.columns if column.name not in ASIDE)
    return replace(basis, columns=basis.columns or columns)


def _joined(join: Join, output: Output) -> Join:
    time, known_at = output.details.get("time"), join.known_at
    if time and known_at is None and not join.exempt:
        known_at = f"{quoted(str(time))} - INTERVAL 1 MICROSECOND"
    return replace(join, known_at=known_at, columns=join.columns or _said(output, join.on))


def _as_of(asof: AsOfJoin, output: Output) -> AsOfJoin:
    return replace(asof, columns=asof.columns or _said(output, asof.on))


def _said(output: Output, on: tuple[str, ...]) -> tuple[str, ...]:
    keys = (*on, *output.details.get("entity", ()), output.details.get("time"))
    return tuple(column.name for column in output.columns if column.name not in (*ASIDE, *keys))
