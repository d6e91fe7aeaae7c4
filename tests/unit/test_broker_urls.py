"""URLs of brokers with several addresses: what is read from them, and what is refused."""

import asyncio
import random
import socket
from typing import Any

import pytest

from bus.broker_urls import place, single_urls, user_of, vhost_of
from bus.errors import Unavailable
from bus.rabbit.addresses import FIRST_LIMIT, LONGEST_LIMIT, AddressOrder, BrokerAddress, resolved
from bus.rabbit.connection import broker_url

LIST = "amqps://u:p%40,x@h1,h2:5673,[::1]:5674/v%2Fw?heartbeat=9"


def test_each_address_of_a_list_has_user_virtual_host_and_options() -> None:
    assert single_urls(LIST) == (
        "amqps://u:p%40,x@h1/v%2Fw?heartbeat=9",
        "amqps://u:p%40,x@h2:5673/v%2Fw?heartbeat=9",
        "amqps://u:p%40,x@[::1]:5674/v%2Fw?heartbeat=9",
    )
    assert (user_of(LIST), vhost_of(LIST)) == ("u", "v/w")
    assert place(LIST) == "u@h1:5671,h2:5673,::1:5674 vhost v/w"
    assert place("amqp://h/") == "h:5672"
    assert single_urls("amqp://u:p@ss@h/v") == ("amqp://u:p@ss@h/v",)  # an @ that is not escaped


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("amqp://u:secret@h1,,h2/", "must look like"),
        ("amqp://u:secret@h1,h2,/", "must look like"),
        ("amqp://u:secret@,/", "must look like"),
        ("amqp://u:secret@h1, h2/", "must look like"),
        ("amqp://u:secret@h1:5672,h2:x/", "must look like"),
        ("amqp://u:secret@h1:0,h2/", "must look like"),
        ("amqp://u:secret@h1:1:2,h2/", "must look like"),
        ("amqp://u:secret@h1;h2:5672 h3/", "must look like"),
        ("amqp://u:secret@h1,u:secret@h2/", "user and password once"),
        ("amqp://u:secret@h1/v,amqp://u:secret@h2/v", "virtual host once"),
        ("amqp://u:secret@h1/,h2/", "virtual host once"),
        ("amqp://u:secret@h1,h2,H1:5672/", "an address twice"),
        ("http://u:secret@h1,h2/", "must begin with amqp:// or amqps://"),
    ],
)
def test_a_malformed_list_is_refused_without_its_password(url: str, says: str) -> None:
    with pytest.raises(ValueError, match=says) as refused:
        broker_url(url, "test")
    assert "secret" not in str(refused.value)


def test_the_heartbeat_of_a_url_precedes_the_general_one() -> None:
    assert broker_url("amqp://h1,h2/v", "a b") == "amqp://h1,h2/v?heartbeat=5&name=a+b"
    assert broker_url("amqp://h/v?heartbeat=3", "x") == "amqp://h/v?heartbeat=3&name=x"


ADDRESSES = [BrokerAddress(f"amqp://h{number}/", f"10.0.0.{number}", 5672) for number in range(3)]


def test_processes_spread_over_all_addresses() -> None:
    first = [AddressOrder(random.Random(seed)).ordered(ADDRESSES)[0] for seed in range(300)]
    assert all(first.count(address) > 60 for address in ADDRESSES)


def test_a_failed_address_is_tried_last_until_it_succeeds() -> None:
    order = AddressOrder(random.Random(1))
    order.failed(ADDRESSES[0])
    order.failed(ADDRESSES[1])
    assert all(order.ordered(ADDRESSES) == [ADDRESSES[2], *ADDRESSES[:2]] for _ in range(50))
    order.failed(ADDRESSES[0])
    assert order.ordered(ADDRESSES) == [ADDRESSES[2], ADDRESSES[1], ADDRESSES[0]]
    for address in ADDRESSES[:2]:
        order.succeeded(address)
    assert {order.ordered(ADDRESSES)[0] for _ in range(100)} == set(ADDRESSES)


def test_the_limit_of_an_address_grows_while_it_fails() -> None:
    order, limits = AddressOrder(random.Random(1)), []
    for _ in range(5):
        limits.append(order.limit(ADDRESSES[0]))
        order.failed(ADDRESSES[0])
    assert limits == [FIRST_LIMIT, 4.0, 8.0, LONGEST_LIMIT, LONGEST_LIMIT]
    assert order.limit(ADDRESSES[1]) == FIRST_LIMIT


async def test_a_host_name_with_several_addresses_is_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    async def getaddrinfo(host: str, port: int, **_: Any) -> list[Any]:
        if host == "none":
            raise socket.gaierror(-2, "Name or service not known")
        return [(0, 0, 0, "", (ip, port)) for ip in ("10.0.0.1", "10.0.0.2", "10.0.0.1")]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    found, problems = await resolved("amqp://u:secret@mq,none,mq:5673/v")
    assert [(address.ip, address.port) for address in found] == [
        ("10.0.0.1", 5672),
        ("10.0.0.2", 5672),
        ("10.0.0.1", 5673),
        ("10.0.0.2", 5673),
    ]
    assert found[0].place == "u@mq:5672 vhost v (10.0.0.1)"
    [problem] = problems
    assert isinstance(problem, Unavailable)
    assert "RabbitMQ at u@none:5672 vhost v cannot be reached: [Errno -2] Name or" in str(problem)
