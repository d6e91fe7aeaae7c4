"""Makes the server of the Placement API from the settings. Imported only if needed: loading it is slow."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import cache
from pathlib import Path
from typing import Any, cast

import msgspec

from berth.features import added, http_parts, http_rules
from berth.kit.feature_parts import authentication
from berth.kit.http_descriptions import DescribedOperation, HttpApiPart
from berth.openapi import document
from berth.settings import BadSetting, Settings
from bus.clock import Clock
from bus.http import HttpLimits, announce, listen, serve
from bus.tls import TlsFiles
from bus.vocabulary import Message
from placement_worker import Placement
from placement_worker.http import Options, access, format_refusal, http_app
from placement_worker.http.access import TokenChecker, TokenFile, UncheckedTokens
from placement_worker.http.extension import ApiAnswer, ApiCall, HttpPart, get
from placement_worker.http.recording import RecordedRequests


def placement_http(
    placement: Placement, settings: Settings, publish: Callable[[Message], Awaitable[None]] | None
) -> Callable[[], Coroutine[Any, Any, None]]:
    """Return a coroutine function that runs the HTTP server of the Placement API until it is cancelled.

    `publish` sends records of the audit trail; None: no records are made.
    """
    tokens = tokens_of(settings, placement.clock)
    policy = policy_of(settings)
    records = None
    if publish is not None:
        records = RecordedRequests(publish, placement.clock, policy, known_by(settings))
    origins = settings.placement.cors_origins
    options = Options(tokens=tokens, policy=policy, origins=origins, parts=api_parts(), records=records)
    app = http_app(placement, options)

    async def run() -> None:
        async with tokens, asyncio.TaskGroup() as group:
            recording = group.create_task(records.run()) if records else None
            listener = listen(settings.placement.http)
            announce("placement is served", listener, tls=tls_of(settings))
            await serve(
                app,
                listener,
                limits=HttpLimits(keep_alive=settings.placement.keep_alive),
                format_refusal=format_refusal,
                closing=app.state.closing.set,
                tls=tls_of(settings),
            )
            if recording:
                recording.cancel()

    return run


DOCUMENT_ADDRESS = "/berth/openapi.json"


def api_parts() -> list[HttpPart]:
    """Return what is served in addition to the Placement API: the parts of features, and the document of
    their operations.
    """
    return [*http_parts(), HttpPart(routes={DOCUMENT_ADDRESS: (get("", _show_document),)}, rules={})]


def placement_document() -> dict[str, Any]:
    """Return the OpenAPI document of the operations that features add to the Placement API, which itself has
    a published reference.
    """
    this = DescribedOperation("Return this document.", dict[str, Any], is_open=True)
    operations, in_path = {(DOCUMENT_ADDRESS, "GET"): this}, dict[str, str]()
    for part in added(HttpApiPart, "http"):
        operations |= part.description.operations
        in_path |= part.description.in_path
    summary = "Resources that berth serves in addition to the OpenStack Placement API."
    return document(operations, summary, in_path)


async def _show_document(call: ApiCall) -> ApiAnswer:
    return ApiAnswer(body=_document_in_json())


@cache
def _document_in_json() -> bytes:
    return msgspec.json.encode(placement_document())


def known_by(settings: Settings) -> str:
    """Return the audit trail's text for the source of an operator's name."""
    auth = settings.placement.auth
    return {"noauth2": "unchecked name", "tokens": "token file"}.get(auth, auth)


def tokens_of(settings: Settings, clock: Clock) -> TokenChecker:
    """Return the checker of tokens that the setting placement_auth selects."""
    api = settings.placement
    try:
        if api.auth == "tokens":
            return TokenFile(Path(api.tokens))
        method = authentication(api.auth)
        return UncheckedTokens() if method is None else cast(TokenChecker, method.tokens(settings, clock))
    except ValueError as problem:
        raise BadSetting(str(problem)) from None


def policy_of(settings: Settings) -> access.AccessPolicy:
    """Return the Placement API's policy (which callers may send which requests); raise BadSetting for a wrong
    file.
    """
    api = settings.placement
    try:
        rules = access.load_policy(Path(api.policy)) if api.policy else {}
        if (method := authentication(api.auth)) is not None:
            rules = {**method.rules, **rules}
        strict = api.enforce_new_defaults
        return access.AccessPolicy(rules, of_features=http_rules(), enforce_new_defaults=strict)
    except access.BadPolicy as problem:
        raise BadSetting(str(problem)) from None


def tls_of(settings: Settings) -> TlsFiles | None:
    """Return the TLS files of the HTTP servers; None if they are not configured."""
    process = settings.process
    return TlsFiles(process.http_certificate, process.http_key) if process.http_certificate else None
