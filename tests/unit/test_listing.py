"""The forms of lists: columns, order, and what is printed for programs."""

import asyncio
import io
import json
from itertools import pairwise

import msgspec
import pytest
from rich.console import Console

from berth.kit.listing import (
    WATCH_SECONDS,
    ListCli,
    Listing,
    PlainTable,
    Ranked,
    plain_table,
    repeated,
    sort_key,
)
from berth.settings import BadSetting, Settings
from tests.support.virtual_time import in_virtual_time

HOSTS = [{"host": "host-10", "used": 0.5}, {"host": "host-9", "used": 0.25}, {"host": "host-1", "used": None}]


def a_table() -> PlainTable:
    rows = [
        ("host-10", Ranked("50 %", 0.5), "z1"),
        ("host-9", Ranked("25 %", 0.25), "z2"),
        ("host-1", "-", "z3"),
    ]
    return plain_table(("host", "used", "zone"), rows, wide=("zone",))


def printed(listing: Listing, capsys: pytest.CaptureFixture[str]) -> str:
    output = io.StringIO()
    ListCli(Settings(), listing.is_data, Console(file=output, width=60), listing=listing).rows(
        HOSTS, a_table()
    )
    return output.getvalue() + capsys.readouterr().out


def words(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_a_list_has_its_usual_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert words(printed(Listing(), capsys))[:2] == [["host", "used"], ["host-10", "50", "%"]]


def test_a_wide_list_has_all_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert words(printed(Listing("wide"), capsys))[1] == ["host-10", "50", "%", "z1"]


def test_the_named_columns_are_shown_in_their_sequence(capsys: pytest.CaptureFixture[str]) -> None:
    assert words(printed(Listing(columns=("zone", "host")), capsys))[1] == ["z1", "host-10"]


@pytest.mark.parametrize(
    ("sort", "hosts"),
    [
        ("", ["host-10", "host-9", "host-1"]),
        ("host", ["host-1", "host-9", "host-10"]),
        ("used", ["host-1", "host-9", "host-10"]),
        ("-used", ["host-10", "host-9", "host-1"]),
    ],
)
def test_rows_and_records_are_sorted_alike(
    sort: str, hosts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert printed(Listing("name", sort=sort), capsys).split() == hosts
    records = printed(Listing("json", sort=sort), capsys).splitlines()
    assert [json.loads(record)["host"] for record in records] == hosts


def test_yaml_is_a_list_of_the_records(capsys: pytest.CaptureFixture[str]) -> None:
    assert msgspec.yaml.decode(printed(Listing("yaml"), capsys)) == HOSTS


def test_a_list_of_nothing_is_empty_for_programs_and_a_sentence_for_people(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def of_nothing(form: str) -> str:
        output = io.StringIO()
        listing = Listing(form)
        ListCli(Settings(), listing.is_data, Console(file=output), listing=listing).rows([], "no host")
        return (output.getvalue() + capsys.readouterr().out).strip()

    assert [of_nothing(form) for form in ("table", "json", "yaml", "name")] == ["no host", "", "[]", ""]


def test_an_unknown_form_column_or_order_is_refused_with_those_that_exist(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(BadSetting, match="--output xml: it is one of table, wide, json, yaml, name"):
        Listing("xml")
    with pytest.raises(BadSetting, match="--columns hots: the columns are host, used, zone"):
        printed(Listing(columns=("hots",)), capsys)
    with pytest.raises(BadSetting, match="--sort size: the columns are host, used, zone"):
        printed(Listing(sort="-size"), capsys)
    with pytest.raises(BadSetting, match="--columns chooses the columns of a table"):
        Listing("json", columns=("host",))


def test_nothing_is_sorted_before_numbers_and_numbers_before_texts() -> None:
    cells = ["rack-10", "rack-9", "-", "12 GB", 3, Ranked("2h", 7200.0)]
    assert sorted(cells, key=sort_key) == ["-", 3, "12 GB", Ranked("2h", 7200.0), "rack-9", "rack-10"]


class ListedEnough(Exception):
    pass


@in_virtual_time
async def test_a_watched_list_is_printed_again_until_it_ends() -> None:
    times = list[float]()

    async def list_once() -> None:
        times.append(asyncio.get_running_loop().time())
        if len(times) == 3:
            raise ListedEnough

    with pytest.raises(ListedEnough):
        await repeated(list_once)
    assert [later - earlier for earlier, later in pairwise(times)] == [WATCH_SECONDS, WATCH_SECONDS]
