"""The credentials of clients, for `berth access list`."""

from berth.kit import Credential, CredentialsPart, Settings
from bus.broker_urls import client_user
from bus.delivery.runner import Bus
from features.clients.messages import CLIENTS, FindClients


async def listed(bus: Bus, settings: Settings) -> list[Credential]:
    clients = (await bus.asker(CLIENTS)(FindClients())).clients
    return [
        Credential(
            kind="client",
            name=client.name,
            id=client_user(client.name, settings.bus.exchange),
            role=client.role,
            cells=client.cells,
            projects=client.projects,
            revoke=f"berth access client delete {client.name}",
        )
        for client in clients
    ]


PART = CredentialsPart(listed)
