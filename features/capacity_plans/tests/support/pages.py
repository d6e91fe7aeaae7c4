"""The page about capacity plans, for tests of all pages of the control room."""

from typing import Any

MIX = "mix=2xVCPU:2,MEMORY_MB:4096%0AVCPU:30,MEMORY_MB:70000"
PAGES = {"capacity": f"/what-if/capacity?{MIX}&add=2xlike:{{host}}"}
VALUES: dict[str, str] = {}
PARAMETERS = {"/what-if/capacity": ("mix", "add", "without", "zone", "cell")}
KNOWN = {"/what-if/capacity": {"mix": "VCPU:1"}}
STREAMS = ("/what-if/capacity",)
ODD = ("/what-if/capacity?wait=1&mix=VCPU:1&add=2xlike:host-1",)


def workers() -> list[Any]:
    return []
