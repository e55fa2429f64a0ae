"""A model whose contextual features are computed by key from a view, as a replica serves it."""

from collections.abc import Mapping
from pathlib import Path

from gridmill.domain.service_features import FeatureRule, OnlinePolicy, TableVersion, ViewOrder, ViewOrders
from gridmill.domain.serving import ServedVersion, ServiceOrder
from gridmill.jobs.features import Encoding
from gridmill.online.definition import OnlineDefinition
from tests.kit.online_case import OnlineCase
from tests.kit.served_models import sum_model

SQL_TO_ARROW = {"VARCHAR": "string", "BOOLEAN": "bool", "BIGINT": "int64"}


def keyed_order(
    case: OnlineCase,
    *,
    rules: Mapping[str, FeatureRule] | None = None,
    policy: OnlinePolicy | None = None,
    example: Mapping[str, object] | None = None,
) -> ServiceOrder:
    """Save the definition of the features of a case beside its view, and return the order of a service. Its
    model adds all numeric features."""
    plan = case.plan()
    OnlineDefinition(
        plan=plan, rules=dict(rules or {}), policy=policy or OnlinePolicy(), example=dict(example or {})
    ).save(case.folder)
    numeric = [name for name in plan.features if plan.types.get(name, "DOUBLE") not in ("VARCHAR", "BLOB")]
    encodings = [Encoding(column=name, type="double") for name in numeric]
    folder = case.tables.folder / "model"
    if not folder.exists():
        sum_model(folder, encodings, sequence=plan.sequence)
    return ServiceOrder(
        name="temps",
        versions=(ServedVersion(label="w/m@1", folder=str(folder), features=str(Path(case.folder))),),
    )


def view_orders(case: OnlineCase, checked_at: float) -> ViewOrders:
    """The newest versions of the tables of a case, as the control node sends them."""
    tables = {
        name: TableVersion(artifact=f"w/{name}@{one.output.table_version}", output=one.output)
        for name, one in case.sources().items()
        if name in case.plan().tables
    }
    return ViewOrders(
        views=(
            ViewOrder(
                definition=str(case.folder),
                folder=str(case.folder),
                root=str(case.tables.folder / "root"),
                tables=tables,
                reach_back_seconds=case.limits.reach_back_seconds,
            ),
        ),
        checked_at=checked_at,
    )
