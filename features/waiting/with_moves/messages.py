"""The part of requests to move an instance: how long the move waits for a host, and its priority."""

from bus.feature import MessagesPart
from bus.parts import MoveParts
from features.waiting.messages import WaitPart

PART = MessagesPart(parts={MoveParts: WaitPart})
