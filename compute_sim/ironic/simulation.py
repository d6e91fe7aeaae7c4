"""A complete simulated Ironic: conductor, power, notifications, REST API and optional background traffic."""

import asyncio
import socket
from collections.abc import Sequence

from starlette.applications import Starlette

from bus.clock import Clock
from bus.http import serve, url_of
from bus.messages import NodeChanged
from bus.worker import Worker
from compute_sim.ironic.api import Api
from compute_sim.ironic.churn import Churn
from compute_sim.ironic.conductor import Conductor, SimPlan, Told
from compute_sim.ironic.envelope import SentNotification
from compute_sim.ironic.node import SimNode
from compute_sim.ironic.notify import BusVoice, NotificationSink
from compute_sim.ironic.power import Power
from compute_sim.ironic.rest import rest_app
from compute_sim.ironic.transitions import Works


class Simulation:
    """An Ironic with these nodes: call `run`, or serve its `worker`. Without a voice it sends no
    notifications.
    """

    def __init__(
        self,
        nodes: Sequence[SimNode],
        *,
        plan: SimPlan | None = None,
        voice: NotificationSink | None = None,
        clock: Clock | None = None,
        host: str = "localhost",
        churn: float = 0.0,  # notifications per second
        listener: socket.socket | None = None,
        user: str = "",
        password: str = "",
    ) -> None:
        self._voice = voice
        self._churn = churn
        self._listener = listener
        self.said = 0  # notifications
        if voice is None:
            self.conductor = Conductor(plan, clock, self._handle, host=host)
        else:
            self.conductor = Conductor(plan, clock, self._handle, room=voice.room, host=host)
        self.works = Works(self.conductor)
        self.power = Power(self.conductor)
        self.conductor.enroll(nodes)
        self.app: Starlette = rest_app(self.conductor, self.works, self.power, user=user, password=password)

    @property
    def url(self) -> str:
        """The listening address, or an empty string."""
        return "" if self._listener is None else url_of(self._listener)

    async def run(self) -> None:
        """Run until cancelled."""
        if isinstance(self._voice, BusVoice):
            self._voice.introduce(self.conductor.nodes.values())
        self.power.start()
        async with asyncio.TaskGroup() as group:
            group.create_task(self.conductor.run())
            if self._voice is not None:
                group.create_task(self._voice.run())
            if self._churn:
                api = Api(self.conductor, self.works, self.power)
                group.create_task(Churn(self.conductor, api, self._churn, lambda: self.said).run())
            if self._listener is not None:
                group.create_task(serve(self.app, self._listener))

    def worker(self, name: str = "ironic_sim") -> Worker:
        """Return the simulation as a worker of berth, with a BusVoice."""
        return Worker(name, runs=[self.run], announces=frozenset({NodeChanged}))

    def _handle(self, told: Told) -> None:
        if not (isinstance(told, SentNotification) and told.silent):
            self.said += 1
        if self._voice is not None:
            self._voice(told)
