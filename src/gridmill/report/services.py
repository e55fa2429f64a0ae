"""The aliases that the run has moved or kept after a comparison, and the services of the run with their
states."""

from collections.abc import Iterable, Sequence

from gridmill.domain.pod_protocol import Event
from gridmill.domain.promotion import PROMOTION_EVENT, PromotionState
from gridmill.domain.service import ServiceView

ServiceRow = tuple[str, str, str, str, str, str]


def promotion_lines(events: Iterable[Event]) -> list[tuple[str, str]]:
    """Return the newest result of each alias that the run has compared, with the command that accepts a
    version which waits for approval (empty: none waits)."""
    newest = {str(event.body.get("id")): event.body for event in events if event.type == PROMOTION_EVENT}
    return [(f"{alias} {body.get('message', '')}", _command(alias, body)) for alias, body in newest.items()]


def _command(alias: str, body: object) -> str:
    state = body.get("state") if isinstance(body, dict) else None
    return f"gridmill promote model {alias}" if state == PromotionState.WAITING else ""


def service_rows(views: Sequence[ServiceView]) -> list[ServiceRow]:
    """Return the services for the page: name, state, version, replicas, URL and message."""
    return [
        (
            view.name,
            str(view.state),
            _version(view),
            f"{view.ready} of {view.service.replicas * view.service.pods} ready",
            view.url,
            view.message,
        )
        for view in views
    ]


def _version(view: ServiceView) -> str:
    service = view.service
    canary = f", {service.canary_percent:g} % {service.canary}" if service.canary else ""
    return f"{service.version}{canary}"
