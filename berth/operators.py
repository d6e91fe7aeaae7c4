"""Determines the operator that runs a command: by a token, or the system user."""

import os
import pwd
import socket
from functools import partial
from pathlib import Path

from berth.features import added, authentication_methods
from berth.kit.feature_parts import OperatorPart
from berth.settings import BadSetting, Settings
from bus.audit_trail import Operator
from bus.clock import Clock
from bus.delivery.recording import Caller, RecordingBus
from bus.errors import OperationRefused
from bus.protocol import Transport


def operator_bus(settings: Settings, transport: Transport, through: str, request: str = "") -> RecordingBus:
    """Return a connection to the bus for the operator that runs this command. The audit trail records the
    command, as `through`, and the id `request` with each act.

    A feature may have made the RabbitMQ user of the settings, and returns the connection of such a user. Else
    this connection checks and records the acts.
    """
    for part in added(OperatorPart, "operators"):
        if (of_feature := part.bus(settings, transport)) is not None:
            return of_feature
    bus = RecordingBus(transport)
    bus.identify = partial(command_caller, settings, through, request or bus.clock.uuid())
    return bus


async def command_caller(settings: Settings, through: str, request: str) -> Caller:
    """Return the caller of a command for roles and audit trail: the owner of the configured token, or the
    system user.
    """
    file = settings.process.operator_token_file
    operator = await _of_token(settings, Path(file)) if file else _system_user()
    origin = socket.gethostname()
    if came_from := os.environ.get("SSH_CONNECTION", "").split():
        origin = f"{origin} from {came_from[0]}"
    return Caller(operator=operator, interface="command", through=through, origin=origin, request=request)


def _system_user() -> Operator:
    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # the user of a container may have no entry
        name = f"uid {os.getuid()}"
    by_sudo = os.environ.get("SUDO_USER", "")
    return Operator(
        name=by_sudo or name, role="admin", known_by=f"sudo to {name}" if by_sudo else "system user"
    )


async def _of_token(settings: Settings, file: Path) -> Operator:
    from berth.placement_http import known_by, policy_of, tokens_of  # loads slowly
    from placement_worker.http.access import UncheckedTokens

    try:
        token = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as problem:
        why = getattr(problem, "strerror", None) or "not text"
        raise BadSetting(f"operator_token_file = {str(file)!r}: {why}") from None
    tokens = tokens_of(settings, Clock())
    if isinstance(tokens, UncheckedTokens):
        methods = " or ".join(("tokens", *authentication_methods()))
        raise BadSetting(f"operator_token_file: tokens are only checked with placement_auth = {methods}")
    async with tokens:
        identity = await tokens.identity(token)
    if identity is None:
        raise OperationRefused(f"the token in {file} is not valid")
    return policy_of(settings).operator(identity, known_by(settings))
