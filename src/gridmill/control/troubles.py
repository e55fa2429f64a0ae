"""Troubles that last: told once, until they are others or over."""

from collections.abc import Mapping

from gridmill.control.state import Control


def tell(control: Control, what: str, trouble: str) -> None:
    """Warn of the trouble with `what`, unless that was the last thing told of it; empty: it is over."""
    if not trouble:
        control.troubles.pop(what, None)
    elif control.troubles.get(what) != trouble:
        control.troubles[what] = trouble
        control.warn(trouble)


def tell_all(control: Control, kind: str, troubles: Mapping[str, str]) -> None:
    """Those of that kind, by what they are with; of anything else of that kind it is over."""
    now = {f"{kind} {what}": trouble for what, trouble in troubles.items()}
    for known in [key for key in control.troubles if key.startswith(f"{kind} ")]:
        if known not in now:
            del control.troubles[known]
    for what, trouble in now.items():
        tell(control, what, trouble)


def surveyed(control: Control, site: str, trouble: str) -> None:
    """What came of a look at a site. That it does not answer is told once, whoever asked it; who asks for its
    pods tells when that is over, unless there are none, or what they said last is still coming."""
    asked = f"site {site}"
    pods = any(one.site == site for one in control.ledger.snapshot.deployments.values())
    if not trouble and (not pods or control.aside.doing(f"observe {site}")):
        tell(control, asked, "")
    tell(control, f"look {site}", "" if asked in control.troubles else trouble)


def forget_gone(control: Control) -> None:
    """Nothing more is told of deployments and sites that are no more."""
    snapshot = control.ledger.snapshot
    for what in tuple(control.troubles):
        kind, _, name = what.rpartition(" ")
        known = snapshot.deployments if not kind else snapshot.sites
        if kind in ("", "site", "look") and name not in known:
            del control.troubles[what]


def trouble_at(control: Control, site: str) -> str:
    """Why nothing is heard of a site; empty: it answers."""
    return control.troubles.get(f"site {site}") or control.troubles.get(f"look {site}") or ""


def troubles(control: Control) -> tuple[str, ...]:
    """Those that last."""
    return tuple(dict.fromkeys(tuple(control.troubles.values())))  # a tick may add to it meanwhile
