"""Placement's HTTP API, as the settings describe it. Imported only if it is served: it loads slowly."""

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from berth.settings import BadSetting, Settings
from bus.http import HttpLimits, announce, listen, serve
from placement_worker import Placement
from placement_worker.http import Options, access, format_refusal, http_app


def placement_http(placement: Placement, settings: Settings) -> Callable[[], Coroutine[Any, Any, None]]:
    """Return the function that serves the Placement API until cancelled."""
    app = http_app(placement, _options(settings))

    async def run() -> None:
        listener = listen(settings.placement.http)
        announce("placement is served", listener)
        await serve(
            app,
            listener,
            limits=HttpLimits(connections=settings.placement.http_connections),
            drain=settings.process.drain,
            format_refusal=format_refusal,
            closing=app.state.closing.set,
        )

    return run


def _options(settings: Settings) -> Options:
    tokens, rules = access_of(settings)
    origins = settings.placement.cors_origins
    return Options(authenticate=tokens or access.noauth2, policy=rules, origins=origins)


def access_of(settings: Settings) -> tuple[access.TokenFile | None, access.AccessPolicy]:
    """Return the token file of the Placement API, if it has one, and its policy; or raise BadSetting."""
    door = settings.placement
    try:
        tokens = access.TokenFile(Path(door.tokens)) if door.auth == "tokens" else None
        file_rules = access.load_policy(Path(door.policy)) if door.policy else {}
        return tokens, access.AccessPolicy(file_rules, enforce_new_defaults=door.enforce_new_defaults)
    except (access.BadTokens, access.BadPolicy) as problem:
        raise BadSetting(str(problem)) from None
