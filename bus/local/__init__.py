"""The bus in one process: a broker, its journal, and a socket for other processes of this machine."""

from bus.local.broker import Chaos, LocalBroker
from bus.local.transport import LocalTransport

__all__ = ["Chaos", "LocalBroker", "LocalTransport"]
