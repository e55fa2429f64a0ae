"""The examples that the help of each command shows.

The examples work as soon as the records that they name, such as the pipeline `weather`, exist.
"""

from collections.abc import Mapping

EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "run": ("run pipeline.yaml", "run pipeline.yaml --set trees=200 --only train"),
    "plan": ("plan pipeline.yaml", "plan weather --json"),
    "validate": ("validate pipeline.yaml", "validate pipeline.yaml --set trees=200"),
    "init": ("init", "init rentals"),
    "apply": ("apply -f pipeline.yaml", "apply -f pipeline.yaml --adopt"),
    "backfill": (
        "backfill weekly --from 2024-01-01 --to 2024-07-01 --every 7d",
        "backfill weekly",
    ),
    "resume": ("resume weather", "resume weather-3 --detach"),
    "stop": ("stop weather-3", "stop weather-3 train", "stop service rain", "stop schedule nightly"),
    "update": (
        "update service rain --model weather/lstm@champion",
        "update service rain --canary weather/lstm@4 --weight 10",
        "update service rain --replicas 4",
        "update service rain --timeout 2s --cors https://shop.example",
    ),
    "promote": ("promote service rain", "promote model weather/lstm@champion"),
    "rollback": ("rollback service rain", "rollback model weather/lstm@champion"),
    "start": (
        "start run pipeline.yaml",
        "start service rain --model weather/lstm@champion --replicas 2",
        "start schedule nightly",
    ),
    "status": ("status", "status weather --watch"),
    "logs": (
        "logs weather train",
        "logs weather -f",
        "logs service rain",
        "logs weather-3 train --search error --tail 100",
    ),
    "show": (
        "show run weather-1",
        "show job weather-1 train",
        "show model weather/lstm",
        "show service rain",
    ),
    "list": ("list models", "list runs --state failed -n 5", "list jobs weather-1 --state failed"),
    "costs": ("costs", "costs --by job --month 2026-11"),
    "preview": ("preview weather/forecast", "preview shops/sales --rejects"),
    "diff": ("diff weather/features@1 weather/features@2", "diff shops/sales@1 shops/sales --key shop,day"),
    "verify": ("verify", "verify weather/lstm@2"),
    "compare": ("compare weather/lstm", "compare weather/lstm 3 champion weather/trees"),
    "du": ("du", "du --by version"),
    "clean": ("clean --dry-run", "clean --days 30"),
    "predict": (
        "predict rain --data rows.csv --output answer.csv",
        "predict rain --data weather/hourly -o answer.parquet",
    ),
    "export": ("export weather/forecast --to forecast.csv", "export weather/lstm@3 --to lstm.onnx"),
    "path": ("path weather/forecast", "path weather/lstm@3"),
    "backup": ("backup weather -o weather.zip", "backup weather shops -o both.zip"),
    "restore": ("restore weather.zip", "restore weather.zip --json"),
    "import": (
        "import model rain rain.onnx",
        "import model rain rain.onnx --signature signature.yaml --samples rows.csv",
    ),
    "recover": ("recover --dry-run", "recover"),
    "build": (
        "build image burst-1 --at aws --region us-east-1 --instance-type g5.xlarge",
        "build image burst-1 --at aws --base ami-0123456789abcdef0",
    ),
    "offers": ("offers --gpus 1 --gpu-memory 24GB", "offers aws --spot --max-price 0.50 --region us-"),
    "reap": ("reap aws", "reap aws --owner grid-7f3a --older-than 6h --yes"),
    "ssh": ("ssh lease-3", "ssh lease-3 -- nvidia-smi", "ssh lease-3 -L 6006:localhost:6006"),
    "remove": ("remove model weather/lstm@3 --dry-run", "remove run weather-3"),
    "add": (
        "add site lab --kind slurm --set partition=gpu",
        "add cluster gpu-farm --controller 10.1.0.7:8700 --join -",
        "add cloudprovider aws --region us- --profile gridmill",
        "add cloudprovider gcp --region us- --secret gcp-key",
    ),
    "nodes": ("nodes", "nodes --json"),
    "configure": (
        "configure resource big --type training --rows 1M --columns 40",
        "configure resource burst --type training --cpus 4 --memory 8GiB --site lab",
        "configure resource rented --type training --gpus 1 --at aws --instance-type g5.xlarge --max-hours 4",
        "configure model weather/lstm --alias champion=3",
    ),
    "alter": (
        "alter resource big --memory 16GiB",
        "alter sink shops/sales add constraint '{column: price, min: 0}'",
    ),
    "advise": ("advise weather/forecast", "advise weather/forecast --probe"),
    "report": ("report weather", "report weather-3 -o weather.html"),
    "schema": ("schema", "schema > pipeline.schema.json"),
    "up": ("up", "up --listen 127.0.0.1:8701 --store postgresql://me@db/gridmill", "up --light --site slurm"),
    "down": ("down", "down --all"),
    "farm": ("farm invite", "farm revoke laptop"),
    "join": ("join 10.1.0.7 --token -", "join 10.1.0.7 --idle-only --idle-after 15m --hours 19-07"),
    "doctor": ("doctor", "doctor --json"),
    "version": ("version", "version --json"),
}
"""The examples for each command. An example contains the arguments of `gridmill` in the syntax of a
shell."""


def shown(command: str) -> str:
    """Return the examples as text for the end of the help of a command."""
    lines = [f"  gridmill {line}" for line in EXAMPLES[command]]
    return "\b\n" + "\n".join(["Examples:", *lines])
