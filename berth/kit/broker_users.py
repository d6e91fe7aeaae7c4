"""Administers the users of RabbitMQ in commands."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from berth.kit.dry_run import ActCli
from berth.kit.options import option
from berth.kit.terminal import Cli

if TYPE_CHECKING:  # HTTP clients load slowly
    from berth.broker_users import BrokerUsers


@dataclass(frozen=True)
class BrokerTool:
    """Options that select the tool to administer RabbitMQ's users: the management API or rabbitmqctl."""

    management: str = option(
        "",
        "RabbitMQ's management API, http://user:password@host:15672 (default: the setting management_url,"
        " or the usual address, with the user of amqp_url).",
        metavar="URL",
    )
    rabbitmqctl: str = option("", "Use this on the broker's machine, instead.", metavar="COMMAND")

    async def users(self, cli: Cli) -> RecordedUsers:
        """Return the administration of RabbitMQ users at the configured broker; each change is recorded in
        the audit trail.
        """
        from berth.broker_users import broker_users  # it takes long to load

        given = cli.settings.bus
        management = self.management or given.management_url
        return RecordedUsers(await broker_users(given.amqp_url, management, self.rabbitmqctl), cli)


class RecordedUsers:
    """Administers RabbitMQ's users, and records each change of a user in the audit trail."""

    def __init__(self, admin: BrokerUsers, cli: Cli) -> None:
        self._admin, self._cli = admin, cli
        self.by, self.users, self.queues = admin.by, admin.users, admin.queues

    async def take(self, definitions: Mapping[str, Any]) -> None:
        """Create or change users. `definitions` lists the permissions of each user under `permissions`, and
        each new password under `users`.
        """
        names = ", ".join(user["name"] for user in definitions["users"])
        changed = names or ", ".join({each["user"]: "" for each in definitions["permissions"]})
        what = "store permissions and password" if names else "store permissions"
        async with self._cli.recorded("credential", changed, what):
            await self._admin.take(definitions)

    async def drop(self, user: str, *policies: str) -> None:
        """Delete a RabbitMQ user and these policies, and record it. A dry run only checks that the operator
        may do so.
        """
        if isinstance(self._cli, ActCli) and self._cli.dry_run:
            await self._cli.rehearse("credential", user)
            return
        async with self._cli.recorded("credential", user, "delete the user"):
            await self._admin.drop(user, *policies)

    async def queues_like(self, pattern: str) -> list[str]:
        """Return the names of the broker's queues that match a regular expression."""
        return [queue for queue in await self.queues() if re.match(pattern, queue)]

    async def delete_queues(self, pattern: str) -> int:
        """Delete the broker's queues whose names match a regular expression; return how many there were."""
        from berth.broker_inspection import delete_queues  # a client of RabbitMQ, which loads slowly

        queues = await self.queues_like(pattern)
        await delete_queues(self._cli.settings.bus.amqp_url, queues)
        return len(queues)
