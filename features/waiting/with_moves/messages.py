"""The part of requests to move an instance: how long the move waits for a host, and its priority."""

from collections.abc import Mapping

from bus.parts import MoveParts, Part
from features.waiting.messages import WaitPart

PARTS: Mapping[type, type[Part]] = {MoveParts: WaitPart}
