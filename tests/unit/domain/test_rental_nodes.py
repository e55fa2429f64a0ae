from gridmill.domain.amounts import GIB
from gridmill.domain.machine import Offer
from gridmill.domain.rental_nodes import nodes_of_offers, type_of


def offer(kind: str, cpus: int, memory: int, gpus: int = 0, price: int | None = 1, model: str = "") -> Offer:
    return Offer(
        provider="x",
        region="r",
        zones=("a",),
        instance_type=kind,
        cpus=cpus,
        memory_bytes=memory * GIB,
        gpus=gpus,
        gpu_model=model,
        price_micros=price,
    )


def test_each_machine_that_could_be_rented_is_a_node():
    nodes = nodes_of_offers([offer("small", 2, 8), offer("gpu", 4, 16, 1, 9)], 2)
    assert [node.name for node in nodes] == ["small#1", "small#2", "gpu#1", "gpu#2"]
    assert (nodes[2].capacity.cpus, nodes[2].capacity.gpus) == (4.0, 1)
    assert 6 * GIB < nodes[0].capacity.memory_bytes < 8 * GIB
    assert type_of("g5.xlarge#2") == "g5.xlarge"


def test_of_types_of_one_size_the_cheapest_is_used():
    nodes = nodes_of_offers(
        [offer("dear", 2, 8, price=5), offer("cheap", 2, 8, price=3), offer("new", 2, 8, price=None)], 1
    )
    assert [node.name for node in nodes] == ["cheap#1"]


def test_types_with_other_gpus_are_kept_apart():
    nodes = nodes_of_offers([offer("a", 4, 16, 1, 5, "A10G"), offer("t", 4, 16, 1, 3, "T4")], 1)
    assert {node.name for node in nodes} == {"a#1", "t#1"}


def test_of_too_many_types_the_largest_and_the_cheapest_are_kept():
    offers = [offer(f"c{size}", size, size, price=size) for size in range(1, 200)]
    names = {type_of(node.name) for node in nodes_of_offers(offers, 1)}
    assert len(names) == 64
    assert {"c199", "c1", "c2"} <= names
