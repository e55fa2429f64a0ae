"""The rules of the firewall: those of the whole account, and rulesets for some instances of a region.

Sources: https://docs-api.lambda.ai/api/cloud#firewallRulesList, #firewallRulesSet, #firewallRulesetsList,
#createFirewallRuleset, #getFirewallRuleset, #updateFirewallRuleset and #deleteFirewallRuleset
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from ipaddress import ip_network
from typing import Any

from gridmill.domain.frozen import replace
from gridmill.testing.cloud.lambda_cloud import catalogue
from gridmill.testing.cloud.lambda_cloud.call import Call
from gridmill.testing.cloud.lambda_cloud.records import Rule, Ruleset
from gridmill.testing.cloud.lambda_cloud.refusal import LambdaRefusalError, in_use, invalid, not_found

_GLOBAL = "global"
_HIGHEST_PORT = 65_535


def list_rules(call: Call) -> list[dict[str, Any]]:
    """Lists the rules of the whole account."""
    return [_rule_shape(one) for one in call.world.rules]


def set_rules(call: Call) -> list[dict[str, Any]]:
    """Replaces the rules of the whole account."""
    call.allow_only("data")
    if "data" not in call.body:
        raise invalid("data is missing.")
    call.world.rules = _rules(call.items("data"))
    call.world.apply_rules()
    return list_rules(call)


def list_rulesets(call: Call) -> list[dict[str, Any]]:
    """Lists the rulesets, without the one of the whole account."""
    return [_shape(one, call) for one in call.world.rulesets.all(call.as_of)]


def create_ruleset(call: Call) -> dict[str, Any]:
    """Creates a ruleset in a region."""
    call.allow_only("name", "region", "rules")
    region = call.text("region", longest=64)
    if region not in catalogue.REGIONS:
        raise invalid(f"{region} is not a region.")
    ruleset = Ruleset(
        id=call.world.new_id(),
        name=call.text("name", longest=64),
        region=region,
        rules=_rules(call.items("rules")),
        created_at=call.now,
    )
    call.world.rulesets.put(ruleset.id, ruleset, call.now)
    return _shape(ruleset, call)


def get_ruleset(call: Call) -> dict[str, Any]:
    """Returns one ruleset, or that of the whole account."""
    if call.subject == _GLOBAL:
        return _global_shape(call)
    return _shape(_named(call), call)


def update_ruleset(call: Call) -> dict[str, Any]:
    """Changes the name or the rules of a ruleset, or the rules of the whole account."""
    if call.subject == _GLOBAL:
        call.allow_only("rules")
        call.world.rules = _rules(call.items("rules")) if "rules" in call.body else call.world.rules
        call.world.apply_rules()
        return _global_shape(call)
    call.allow_only("name", "rules")
    old = _named(call)
    rules = _rules(call.items("rules")) if "rules" in call.body else old.rules
    new = replace(old, name=call.text("name", longest=64, default=old.name), rules=rules)
    call.world.rulesets.put(new.id, new, call.now)
    call.world.apply_rules()
    return _shape(new, call)


def delete_ruleset(call: Call) -> dict[str, Any]:
    """Deletes a ruleset that no instance uses."""
    ruleset = _named(call)
    if _users(ruleset, call):
        raise in_use()
    call.world.rulesets.put(ruleset.id, None, call.now)
    return {}


def _named(call: Call) -> Ruleset:
    ruleset = call.world.rulesets.get(call.subject)
    if ruleset is None:
        raise not_found(
            "Firewall ruleset does not exist or you do not have permission to access it.",
            "Check your firewall ruleset ID and try again.",
        )
    return ruleset


def _users(ruleset: Ruleset, call: Call) -> list[str]:
    return [one.id for one in call.world.instances.all() if ruleset.id in one.rulesets and one.runs]


def _rules(entries: Sequence[Any]) -> tuple[Rule, ...]:
    return tuple(_rule(one) for one in entries)


def _rule(entry: Any) -> Rule:  # noqa: ANN401  JSON
    if not isinstance(entry, dict):
        raise invalid("A rule is an object.")
    protocol, ports = entry.get("protocol"), entry.get("port_range")
    if protocol not in ("tcp", "udp", "icmp", "all"):
        raise invalid("protocol is not one of tcp, udp, icmp and all.")
    if (protocol == "icmp") != (ports is None):
        raise invalid("port_range is required, but not allowed for icmp.")
    if ports is not None and not _is_range(ports):
        raise invalid("port_range is not a pair of ports.")
    try:
        network = str(ip_network(str(entry.get("source_network"))))
    except ValueError as error:
        raise _bad_network(error) from error
    text = entry.get("description")
    if not isinstance(text, str) or len(text) > 128:
        raise invalid("description is not a text of at most 128 characters.")
    pair = (ports[0], ports[1]) if ports is not None else None
    return Rule(protocol=protocol, ports=pair, network=network, description=text)


def _bad_network(error: ValueError) -> LambdaRefusalError:
    return invalid(f"source_network: {error}.")


def _is_range(ports: Any) -> bool:  # noqa: ANN401  JSON
    if not isinstance(ports, list) or len(ports) != 2 or not all(isinstance(one, int) for one in ports):
        return False
    return bool(1 <= ports[0] <= ports[1] <= _HIGHEST_PORT)


def _rule_shape(rule: Rule) -> dict[str, Any]:
    shape: dict[str, Any] = {
        "protocol": rule.protocol,
        "source_network": rule.network,
        "description": rule.description,
    }
    return shape | ({"port_range": list(rule.ports)} if rule.ports is not None else {})


def _shape(ruleset: Ruleset, call: Call) -> dict[str, Any]:
    return {
        "id": ruleset.id,
        "name": ruleset.name,
        "region": {"name": ruleset.region, "description": catalogue.REGIONS[ruleset.region]},
        "rules": [_rule_shape(one) for one in ruleset.rules],
        "created": datetime.fromtimestamp(ruleset.created_at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "instance_ids": _users(ruleset, call),
    }


def _global_shape(call: Call) -> dict[str, Any]:
    return {"id": _GLOBAL, "name": "Global Firewall Rules", "rules": list_rules(call)}
