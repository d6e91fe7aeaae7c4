"""The control room's page of the capacity over time: amounts, forecasts and charts."""

import re
import time

from features.capacity_history.messages import CAPACITY, CapacityFound, CapacitySample
from tests.support.visited_room import a_visited_room

HOUR = 3600


def growing(hours: int) -> CapacityFound:
    """Return samples of a class that is used up three days after now, in two zones."""
    begin = time.time() // HOUR * HOUR - hours * HOUR
    samples = [
        CapacitySample(begin + at * HOUR, "class", "<VCPU>", zone, 500.0, used, 500 - used, 50.0, 1.0)
        for at in range(hours)
        for zone, used in (("z1", 100.0), ("z2", 800.0 - 3.0 * (hours + 72 - at)))
    ]
    return CapacityFound(samples=tuple(samples))


async def test_the_page_shows_amounts_of_all_zones_a_forecast_and_charts() -> None:
    async with a_visited_room(sent={CAPACITY.name: growing(96)}) as room:
        await room.sign_in("reader")
        page = (await room.browser.get("/capacity?wait=1")).text
        assert (await room.browser.get("/capacity?since=2d&zone=z1")).status_code == 200
    shown = " ".join(re.sub(r"<[^>]*>", " ", page).split())
    in_three_days = time.strftime("%Y-%m-%d", time.gmtime(time.time() // HOUR * HOUR + 72 * HOUR))
    assert "&lt;VCPU&gt; 1,000 681 100 2" in shown
    assert f"used up about {in_three_days}" in shown
    assert page.count("<svg viewBox") >= 1 and "Nothing in this period." not in page


async def test_the_page_says_that_there_is_no_sample_or_no_answer() -> None:
    async with a_visited_room(sent={CAPACITY.name: CapacityFound()}) as room:
        await room.sign_in("reader")
        assert "There is no sample in this period" in (await room.browser.get("/capacity?wait=1")).text
    async with a_visited_room(sent={}) as room:
        await room.sign_in("reader")
        assert "The scheduler does not answer" in (await room.browser.get("/capacity?wait=1")).text
