"""Passwords are never shown, however oddly a URL is written."""

from typing import Any

import pytest

from bus.masking import masked

SECRET = "geheim"


@pytest.mark.parametrize(
    ("shown", "value"),
    [
        # user and password
        ("amqp://u:****@h/", f"amqp://u:{SECRET}@h/"),
        ("AMQPS://u:****@h/", f"AMQPS://u:{SECRET}@h/"),
        ("amqp://u:****@h:5672/v", f"amqp://u:{SECRET}@h:5672/v"),
        ("amqp://u:****@[::1]:5672/v", f"amqp://u:{SECRET}@[::1]:5672/v"),
        ("amqp://:****@h/", f"amqp://:{SECRET}@h/"),
        ("postgresql+asyncpg://u:****@h/b", f"postgresql+asyncpg://u:{SECRET}@h/b"),
        # with what people forget to escape
        ("amqp://u:****@h/", f"amqp://u:{SECRET}@{SECRET}@h/"),
        ("amqp://u:****@h/", f"amqp://u:{SECRET} {SECRET}@h/"),
        ("amqp://u:****@h/", f"amqp://u:{SECRET}/{SECRET}@h/"),
        ("amqp://u:****@h/", f"amqp://u:{SECRET}?{SECRET}#{SECRET}@h/"),
        ("amqp://u:****@h/", f"amqp://u:{SECRET}:{SECRET}@h/"),
        ("amqp://u:****@h/", f"amqp://u:{SECRET}\n{SECRET}@h/"),
        ("amqp://u:****@h/", f"amqp://u: {SECRET}@h/"),
        ("amqp://a user:****@h/", f"amqp://a user:{SECRET}@h/"),
        ("amqp://me@corp:****@h/", f"amqp://me@corp:{SECRET}@h/"),
        ("amqp://a/b:****@h/", f"amqp://a/b:{SECRET}@h/"),
        ("amqp://u:****@h/", f"amqp://u:a://{SECRET}@h/"),
        # without a scheme, or with half of one
        ("u:****@h/", f"u:{SECRET}@h/"),
        ("u:****@h:5672", f"u:{SECRET}@h:5672"),
        ("//u:****@h/", f"//u:{SECRET}@h/"),
        ("amqp:****@h/", f"amqp:u:{SECRET}@h/"),
        ("amqp:****@h/", f"amqp:/u:{SECRET}@h/"),
        ("c1=amqp://u:****@h/", f"c1=amqp://u:{SECRET}@h/"),
        ("c1=amqp://u:****@h2/", f"c1=amqp://u:{SECRET}@h1/,c2=amqp://u:{SECRET}@h2/"),
        ("amqp://u:****", f"amqp://u:{SECRET}"),
        ("amqp://u:****/v", f"amqp://u:{SECRET}/v"),
        # as a parameter
        ("postgresql://h/b?password=****&x=1", f"postgresql://h/b?password={SECRET}&x=1"),
        ("postgresql://h/b?PASSWORD=****&x=1", f"postgresql://h/b?PASSWORD={SECRET}&x=1"),
        ("postgresql://h/b?x=1&sslpassword=****", f"postgresql://h/b?x=1&sslpassword={SECRET}"),
        ("postgresql://h/b?SslPassword=****", f"postgresql://h/b?SslPassword={SECRET}"),
        ("postgresql://h/b?pass%77ord=****", f"postgresql://h/b?pass%77ord={SECRET}"),
        ("postgresql://h/b?password=****&x=1", f"postgresql://h/b?password={SECRET} {SECRET}&x=1"),
        ("postgresql://h/b?password=****", f"postgresql://h/b?password={SECRET}#{SECRET}"),
        ("postgresql://h/b?password=****", f"postgresql://h/b?password=a={SECRET}"),
        ("postgresql://u:****@h/b?password=****", f"postgresql://u:{SECRET}@h/b?password={SECRET}"),
        ("http://h/?access_token=****&a=b", f"http://h/?access_token={SECRET}&a=b"),
        ("host=h password=****", f"host=h password={SECRET} user=u"),
        ("host=h password = ****", f"host=h password = '{SECRET}'"),
        # in other values
        ({"c1": "postgresql://u:****@h/b"}, {"c1": f"postgresql://u:{SECRET}@h/b"}),
        (("a://u:****@h",), (f"a://u:{SECRET}@h",)),
        (["a://u:****@h"], [f"a://u:{SECRET}@h"]),
    ],
)  # fmt: skip
def test_a_password_is_stars(shown: Any, value: Any) -> None:
    assert masked(value) == shown
    assert SECRET not in str(masked(value))


@pytest.mark.parametrize(
    "value",
    [
        "", "postgresql://u@h:5432/b", "amqp://h:5672", "amqp://h:5672?heartbeat=5", "amqp://127.0.0.1:5672/",
        "amqp://[::1]:5672/", "sqlite+aiosqlite:////a/b.db", "postgresql://h/b?host=/run/pg&sslmode=require",
        "postgresql://h/b?password=", "postgresql://h/b?passfile=/p", "no url: at all", "constant:1",
        "127.0.0.1:8778", "ironic_versioned_notifications", "tokens.toml", "properties.rack", 5, 2.5, True,
        None, {"free_ram": 2.0}, ("c1", "c2"),
    ],
)  # fmt: skip
def test_everything_else_is_shown_as_it_is(value: Any) -> None:
    assert masked(value) == value
