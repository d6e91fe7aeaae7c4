"""Logins of cells on PostgreSQL, made by a user that may create logins and databases and is no superuser."""

import secrets
from dataclasses import replace

import asyncpg
import pytest
from sqlalchemy.engine import make_url

from berth.database_logins import LoginLimits, logins
from deploy.servers import Postgres
from tests.support.servers import url_of

LIMITS = LoginLimits(5, 30.0, 60.0, 10.0, 1 << 20)


@pytest.mark.services
async def test_a_login_is_made_changed_and_dropped_by_a_user_that_is_no_superuser(postgres: Postgres) -> None:
    maker, login = (f"{name}_{secrets.token_hex(4)}" for name in ("maker", "cell"))
    url = make_url(url_of(postgres)).set(drivername="postgresql")
    superuser = await asyncpg.connect(url.render_as_string(hide_password=False))
    await superuser.execute(f"CREATE ROLE {maker} LOGIN CREATEROLE CREATEDB PASSWORD 'a password'")
    try:
        as_maker = url.set(username=maker, password="a password").render_as_string(hide_password=False)
        limit = "SELECT rolconnlimit FROM pg_roles WHERE rolname = $1"
        async with logins(as_maker) as server:
            for connections in (5, 6):
                await server.make(login, "a password", replace(LIMITS, connections=connections))
                assert await superuser.fetchval(limit, login) == connections
            await server.drop(login)
        assert await superuser.fetchval(limit, login) is None
    finally:
        await superuser.execute(f"DROP ROLE {maker}")
        await superuser.close()
