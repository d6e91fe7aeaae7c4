"""A command says which broker it is trying to reach, if the broker does not answer soon."""

import io

import pytest
from rich.console import Console

from berth import composition
from berth.commands import terminal
from berth.commands.terminal import Cli
from berth.settings import Settings
from bus.errors import Unavailable
from bus.local import LocalBroker, LocalTransport
from tests.support.waiting import until

SETTINGS = Settings().having(amqp_url="amqp://guest:secret@broker-1:5671/")


class ConnectingTransport(LocalTransport):
    """A transport whose connection is refused after a text was printed."""

    def __init__(self, printed: io.StringIO) -> None:
        super().__init__(LocalBroker())
        self._printed = printed

    async def open(self) -> None:
        async def is_printed() -> bool:
            return bool(self._printed.getvalue())

        await until(is_printed)
        raise Unavailable("no broker")


async def test_a_command_names_the_broker_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    printed = io.StringIO()
    monkeypatch.setattr(terminal, "complain", Console(file=printed, width=200))
    monkeypatch.setattr(terminal, "_SLOW_SECONDS", 0.0)
    monkeypatch.setattr(composition, "transport", lambda settings, name: ConnectingTransport(printed))
    with pytest.raises(Unavailable):
        async with Cli(SETTINGS).bus("waiting"):
            raise AssertionError("connected")
    assert printed.getvalue() == "note: still trying to reach RabbitMQ at guest@broker-1:5671\n"
