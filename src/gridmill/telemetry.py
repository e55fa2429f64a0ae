"""Turns off the telemetry and the update checks of the libraries that Gridmill and its jobs use."""

import os

QUIET = {
    "ORT_DISABLE_TELEMETRY": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
}
"""The environment variables that turn off telemetry. Since version 1.29, ONNX Runtime sends events to its
maker, unless its variable is set before it is imported (see its docs/Privacy.md)."""


def turn_off_telemetry() -> None:
    """Sets these variables in this process, unless they are already set."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
