"""`berth access token`: adds, rotates and revokes the tokens in the file that `placement_tokens` names."""

import json
import os
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import structs

from berth.kit.command_groups import Commands
from berth.kit.dry_run import ActCli
from berth.kit.options import described, option, positional
from berth.kit.secret_files import write_secret
from berth.kit.terminal import Cli
from berth.settings import BadSetting
from bus.clock import Clock
from bus.errors import OperationRefused
from placement_worker.http.access import StoredToken, StoredTokens, digest_of, read_tokens

commands = Commands(name="token", no_args_is_help=True)

Id = Annotated[str, positional("The id of `berth access list --kind token`, or its beginning.", metavar="ID")]
TokenFile = Annotated[Path | None, described("Write the token to this file, mode 0600 (default: print it).")]
_SHOWN = 12  # characters of the SHA-256 that is the id


@dataclass(frozen=True)
class TokenOptions:
    project: str = option("default", "The user's project.")
    role: list[str] | None = option(None, "A role of the token, such as operator; may be repeated.")
    cell: list[str] | None = option(None, "Limit the roles to this cell; may be repeated.")
    only_project: list[str] | None = option(None, "Limit the roles to this project; may be repeated.")


@commands.command("create")
async def add(
    cli: Cli,
    user: Annotated[str, positional("The name of the user in the audit trail.", metavar="USER")],
    options: TokenOptions,
    token_file: TokenFile = None,
) -> None:
    """Add a token for a user; the file stores its SHA-256 only. Servers read the changed file immediately."""
    if not options.role:
        raise BadSetting("--role is missing: reader, operator, admin, service, or a role of placement_policy")
    token = secrets.token_urlsafe(32)
    added = StoredToken(
        sha256=_digest(token),
        user=user,
        project=options.project,
        roles=tuple(options.role),
        cells=tuple(options.cell or ()),
        projects=tuple(options.only_project or ()),
        since=_now(),
    )
    file = _file(cli)
    async with cli.recorded("credential", f"token of {user}", f"add {id_of(added)}"):
        _write(file, [*(tokens_in(file) if file.exists() else ()), added])
    _tell(cli, added, token, token_file)


@commands.command("rotate")
async def rotate(cli: Cli, id_: Id, token_file: TokenFile = None) -> None:
    """Replace a token by a new one with the same user, roles and limits; the former one is refused."""
    token = secrets.token_urlsafe(32)

    def renewed(found: StoredToken) -> StoredToken:
        return structs.replace(found, token="", sha256=_digest(token), since=_now())

    _tell(cli, await _changed(cli, "rotate", id_, renewed), token, token_file)


@commands.command("delete")
async def revoke(cli: ActCli, id_: Id) -> None:
    """Remove a token from the file: it is refused, and sessions of the control room with it end."""
    if cli.dry_run:
        found, *_ = _found(_file(cli), id_, lambda found: None)
        await cli.rehearse("credential", f"token of {found.user}")
    else:
        found = await _changed(cli, "revoke", id_, lambda found: None)
    facts = {"id": id_of(found), "user": found.user, "revoked": True}
    cli.tell(f"token {id_of(found)} of {found.user} {cli.is_now('revoked')}", **facts)


async def _changed(
    cli: Cli, act: str, id_: str, change: Callable[[StoredToken], StoredToken | None]
) -> StoredToken:
    """Change the only token with an id that begins with `id_`, or remove this token if `change` returns None;
    return the changed or removed token. `act`: what is done, for the audit trail.
    """
    file = _file(cli)
    found, changed, left = _found(file, id_, change)
    async with cli.recorded("credential", f"token of {found.user}", f"{act} {id_of(found)}"):
        _write(file, left)
    return changed or found


def _found(
    file: Path, id_: str, change: Callable[[StoredToken], StoredToken | None]
) -> tuple[StoredToken, StoredToken | None, list[StoredToken]]:
    """Return the only token with an id that begins with `id_`, before and after its change, and the tokens of
    the file afterwards; raise OperationRefused if there is no such token, or if none would be left.
    """
    tokens = tokens_in(file)
    matching = [token for token in tokens if id_of(token).startswith(id_) and id_]
    if len(matching) != 1:
        raise OperationRefused(
            f"{len(matching)} tokens have an id that begins with {id_!r}: `berth access list --kind token`"
        )
    (found,) = matching
    changed = change(found)
    left = [token for token in tokens if token is not found] + ([changed] if changed else [])
    if not left:
        raise OperationRefused(f"{file}: it is the last token, and a file without tokens is not accepted")
    return found, changed, left


def _file(cli: Cli) -> Path:
    if not cli.settings.placement.tokens:
        raise BadSetting("placement_tokens is empty: it names the file with the tokens")
    return Path(cli.settings.placement.tokens)


def tokens_in(file: Path) -> Sequence[StoredToken]:
    """Return the tokens of a file; raise BadSetting if it cannot be used."""
    try:
        return read_tokens(file)
    except ValueError as problem:
        raise BadSetting(str(problem)) from None


def _write(file: Path, tokens: Sequence[StoredToken]) -> None:
    """Replace the token file by a file with the given tokens, and with the former owner and mode."""
    if file.suffix == ".json":
        text = msgspec.json.format(msgspec.json.encode(StoredTokens(tuple(tokens))), indent=2).decode() + "\n"
    else:
        text = "\n".join(_toml(token) for token in tokens)
    new = file.with_name(f".new.{file.name}")
    write_secret(new, text)
    try:
        read_tokens(new)  # raises if a user's odd name would make the file unreadable
        if file.exists():
            before = file.stat()
            os.chown(new, before.st_uid, before.st_gid)
            new.chmod(before.st_mode & 0o777)
        os.replace(new, file)
    except ValueError as problem:
        raise BadSetting(f"not written: {problem}") from None
    finally:
        new.unlink(missing_ok=True)


def _toml(token: StoredToken) -> str:
    fields = msgspec.to_builtins(token)
    lines = [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in fields.items() if value]
    return "\n".join(["[[tokens]]", *lines]) + "\n"


def _now() -> datetime:
    return datetime.fromtimestamp(int(Clock().now()), UTC)


def _digest(token: str) -> str:
    return digest_of(token).hex()


def id_of(token: StoredToken) -> str:
    """Return the beginning of a token's digest, by which lists and commands name it."""
    return (token.sha256.lower() or _digest(token.token))[:_SHOWN]


def _tell(cli: Cli, token: StoredToken, secret: str, file: Path | None) -> None:
    if file is not None:
        write_secret(file, f"{secret}\n")
    shown = "" if file else secret
    sentence = f"token {id_of(token)} of {token.user}, which is not shown again: {shown}"
    if file is not None:
        sentence = f"token {id_of(token)} of {token.user} is in {file}"
    cli.tell(sentence, id=id_of(token), user=token.user, token=shown, file=str(file or ""))
