"""Database URLs with several hosts, and which server of a cluster may be used."""

import pytest

from berth.settings import BadSetting
from bus.sql.addresses import DatabaseHost, parse_url
from bus.sql.postgres import ServerHistory, ServerState, newest_of, refusal
from tests.support.written_settings import settings_of

BOTH = (DatabaseHost("h1", 5432), DatabaseHost("h2", 5433))
SYSTEM, OTHER = 7, 8


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:p@h1:5432,h2:5433/db?target_session_attrs=read-write",
        "postgresql+asyncpg://u:p@h1,h2:5433/db",
        "postgresql://u:p@/db?host=h1:5432&host=h2:5433&target_session_attrs=primary",
        "postgresql://u:p@/db?host=h1,h2&port=5432,5433",
    ],
)
def test_several_hosts_can_be_written_in_each_known_form(url: str) -> None:
    address = parse_url(url)
    assert address.hosts == BOTH
    assert not {"host", "port", "target_session_attrs"} & address.url.query.keys()
    assert address.shown.endswith("://u:p@h1:5432,h2:5433/db")


def test_an_ipv6_address_and_a_common_port_in_a_list() -> None:
    assert parse_url("postgresql://[::1]:1,h2/db").hosts == (DatabaseHost("::1", 1), DatabaseHost("h2", 5432))
    assert parse_url("postgresql:///db?host=h1,h2&port=9").hosts == (
        DatabaseHost("h1", 9),
        DatabaseHost("h2", 9),
    )


@pytest.mark.parametrize("url", ["postgresql://u:a,b@h/db", "postgresql:///db?host=/run/postgresql"])
def test_a_single_host_is_no_list(url: str) -> None:
    assert parse_url(url).hosts == ()


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("postgresql://u:secret@h1,,h2/db", "'' in the list of hosts is no host"),
        ("postgresql://u:secret@h1:5432,h2:54x2/db", "'54x2' in the list of hosts is no port"),
        ("postgresql://u:secret@h1,h2:70000/db", "'70000' in the list of hosts is no port"),
        ("postgresql://u:secret@h1,h1:5432/db", "a host is listed twice"),
        ("postgresql://u:secret@h1,h2/db?host=h3", "the hosts are named twice"),
        ("postgresql://u:secret@/db?host=h1,h2&port=1,2,3", "there are 2 hosts and 3 ports"),
        ("postgresql://u:secret@/db?host=h1&port=1,2", "there are several ports and one host"),
        (
            "postgresql://u:secret@h1,h2/db?target_session_attrs=standby",
            "target_session_attrs=standby: berth",
        ),
        ("postgresql://u:secret@h1,h2/db?target_session_attrs=any", "it must be read-write or primary"),
        (
            "postgresql://u:secret@h1/db?target_session_attrs=read-only",
            "target_session_attrs=read-only: berth",
        ),
    ],
)
def test_a_wrong_list_of_hosts_is_refused_with_the_reason(url: str, why: str) -> None:
    with pytest.raises(BadSetting) as refused:
        settings_of({"BERTH_DATABASE_URL": url})
    assert why in str(refused.value) and "secret" not in str(refused.value)


def primary(timeline: int, system: int = SYSTEM) -> ServerState:
    return ServerState(False, ServerHistory(system, timeline))


@pytest.mark.parametrize(
    ("state", "newest", "listed", "why"),
    [
        (primary(1), None, True, ""),
        (primary(2), ServerHistory(SYSTEM, 2), True, ""),
        (primary(3), ServerHistory(SYSTEM, 2), True, ""),
        (primary(1), ServerHistory(SYSTEM, 2), True, "it is a former primary"),
        (primary(1), ServerHistory(SYSTEM, 2), False, "it is a former primary"),
        (ServerState(True, ServerHistory(SYSTEM, 2)), None, True, "it is a standby"),
        (
            ServerState(True, ServerHistory(SYSTEM, 2)),
            None,
            False,
            "",
        ),  # `berth audit check` may read a standby
        (primary(9, OTHER), ServerHistory(SYSTEM, 2), True, "it belongs to another PostgreSQL cluster"),
        (primary(1, OTHER), ServerHistory(SYSTEM, 2), False, ""),  # the address leads to a new cluster
        (ServerState(False, None), ServerHistory(SYSTEM, 2), True, ""),
    ],
)
def test_standbys_and_former_primaries_are_refused(
    state: ServerState, newest: ServerHistory | None, listed: bool, why: str
) -> None:
    refused = refusal(state, newest, listed=listed)
    assert refused.startswith(why) and bool(refused) == bool(why)


def test_a_standby_of_the_new_primary_shows_that_the_old_one_is_a_former_primary() -> None:
    newest = newest_of([primary(1), ServerState(True, ServerHistory(SYSTEM, 2)), primary(9, OTHER)], None)
    assert newest == ServerHistory(SYSTEM, 2)
    assert newest_of([primary(1), ServerState(False, None)], ServerHistory(SYSTEM, 3)) == ServerHistory(
        SYSTEM, 3
    )
