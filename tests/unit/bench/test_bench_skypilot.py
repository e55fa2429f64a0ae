"""The measurement of SkyPilot writes the files that SkyPilot reads, and a section of a page."""

from bench.skypilot_kill import REGION, Step, catalogs, section_of

from gridmill.testing.cloud.ec2 import catalogue


def test_the_catalogue_has_one_type_in_all_zones_of_the_region():
    head, *rows = catalogs()["vms.csv"]
    assert {len(row) for row in rows} == {len(head)}
    zones = [row[head.index("AvailabilityZone")] for row in rows]
    assert zones == [f"{REGION}-az{number + 1}" for number in range(len(catalogue.zones(REGION)))]


def test_the_section_shows_what_was_left_after_each_kill():
    def outcome(step: Step, machines: int, *enders: str, restarted: bool = False) -> dict[str, object]:
        return {
            "step": step.value,
            "restarted": restarted,
            "waited_seconds": 60.0,
            "machines": machines,
            "shutdown_behavior": "stop",
            "enders": list(enders),
        }

    outcomes = [
        outcome(Step.SETUP, 1, "python -m sky.skylet.skylet", restarted=True),
        outcome(Step.NONE, 1),
        outcome(Step.ROLE, 0),
        outcome(Step.LAUNCH, 1),
    ]
    text = section_of({"version": "0.14.1", "date": "2026-11-27", "outcomes": outcomes})
    assert [line for line in text.splitlines() if line.startswith("|")][2:] == [
        "| before the launch request | never starts again | 0 |  |",
        "| after the launch request | never starts again | 1 | nothing |",
        "| no kill: the preparation fails | is not killed | 1 | nothing |",
        "| while it prepares the machine | starts again at once | 1 | python -m sky.skylet.skylet |",
    ]
    assert "SkyPilot 0.14.1" in text
    assert "60 s later" in text
