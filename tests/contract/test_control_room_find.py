"""The search of the control room: from an id or a name to a page."""

from collections.abc import Sequence

import pytest

from bus.resources import FindProviders, Provider, ProvidersFound
from control_room.pages.find import LONGEST
from tests.support.ids import uid
from tests.support.visited_room import HTML, VisitedRoom, a_visited_room


def a_host(number: int, name: str, cell: str) -> Provider:
    root = uid(number)
    return Provider(id=root, name=name, root=root, parent=None, generation=1, host=name, cell=cell)


HOSTS = a_host(1, "host-1", "c1"), a_host(2, "twin", "c1"), a_host(3, "twin", "c2")


async def placement(asked: FindProviders) -> ProvidersFound:
    """Answer like placement."""
    return ProvidersFound(
        providers=tuple(each for each in HOSTS if each.id in asked.ids or each.host == asked.host)
    )


async def led_to(room: VisitedRoom, text: str) -> str:
    """Return the address to which the search redirects; "" if it shows a list."""
    answer = await room.browser.get("/find", params={"q": text}, headers=HTML)
    return answer.headers.get("location", "") if answer.status_code == 303 else ""


@pytest.mark.parametrize(
    ("texts", "address"),
    [
        (("host-1", " host-1 ", uid(1)), f"/hosts/{uid(1)}"),
        ((uid(9),), f"/builds/{uid(9)}"),  # perhaps of a build, a request or a move
        (("twin", "unknown", "", "\0", "h" * (LONGEST + 1)), ""),
    ],
)
async def test_the_search_leads_to_the_only_object_with_an_id_or_a_name(
    texts: Sequence[str], address: str
) -> None:
    async with a_visited_room(sent={"providers": placement}) as room:
        assert [await led_to(room, text) for text in texts] == [address] * len(texts)


async def test_several_objects_are_listed_and_none_says_what_can_be_searched() -> None:
    async with a_visited_room(sent={"providers": placement}) as room:
        page = await room.page("/find?q=twin")
        assert f'<a href="/hosts/{uid(2)}">twin</a> <span class="quiet">c1</span>' in page
        assert f'<a href="/hosts/{uid(3)}">twin</a> <span class="quiet">c2</span>' in page
        assert "Nothing has this id or name" in await room.page("/find?q=unknown")


async def test_hosts_that_could_not_be_searched_are_no_reason_to_lead_elsewhere() -> None:
    async with a_visited_room() as room:
        assert "Hosts could not be searched" in await room.page(f"/find?q={uid(1)}")
