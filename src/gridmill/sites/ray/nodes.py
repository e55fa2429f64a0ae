"""Ray's nodes, as Gridmill sees them: their names, what they give, and what of it a pod claims."""

from collections.abc import Sequence
from typing import Any

import ray
from gridmill.model.amounts import Amounts
from gridmill.model.message import PodOrder

_PIN = 0.001  # of Ray's own resource `node:ADDRESS`, of which each node has 1


def all_nodes() -> list[dict[str, Any]]:
    """As Ray lists them, dead ones too."""
    listed: Any = ray.nodes
    nodes: list[dict[str, Any]] = listed()
    return nodes


def name_of(node: dict[str, Any], hosts: Sequence[str]) -> str:
    """Its host, with the address where several of `hosts` are called the same."""
    host = str(node["NodeManagerHostname"])
    return host if hosts.count(host) == 1 else f"{host}-{node['NodeManagerAddress']}"


def capacity_of(node: dict[str, Any]) -> Amounts:
    """What `ray start` was told that it has."""
    total = node["Resources"]
    return Amounts(
        cpus=float(total.get("CPU", 0.0)),
        memory_bytes=int(total.get("memory", 0)),
        gpus=int(total.get("GPU", 0)),
    )


def bundle_of(order: PodOrder, node: dict[str, Any] | None) -> dict[str, float]:
    """What a pod claims there, the node itself included where it is known."""
    wanted = {
        "CPU": order.capacity.cpus,
        "memory": float(order.capacity.memory_bytes),
        "GPU": float(order.capacity.gpus),
    }
    pin = {f"node:{node['NodeManagerAddress']}": _PIN} if node else {}
    return {name: amount for name, amount in {**wanted, **pin}.items() if amount}
