"""`make screenshots`: a picture of every page, light and dark, wide and narrow, into build/screenshots."""

import argparse
import asyncio
import logging
import sys
import tempfile
from pathlib import Path

from tests.support.browser_tab import a_tab
from tests.support.chromium import a_chromium
from tests.support.open_berth import PAGES, SCHEMES, WIDTHS, an_open_berth
from tests.support.simulated_ironic import a_served_ironic


async def make(folder: Path, names: list[str], hosts: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="berth-screenshots-") as directory:
        async with (
            a_served_ironic() as ironic,
            an_open_berth(Path(directory), ironic, hosts) as berth,
            a_chromium() as browser,
        ):
            async with a_tab(browser, berth.url, "/login") as tab:
                tab.expects("404")
                await tab.sign_in("admin")
                for name in names or PAGES:
                    for scheme in SCHEMES:
                        await tab.colours(scheme)
                        for width in WIDTHS:
                            await tab.wide(width)
                            await tab.open(PAGES[name].format_map(berth.named))
                            await tab.still()
                            await tab.screenshot(folder / f"{name}-{scheme}-{width}.png")
    sys.stdout.write(f"{folder}: {len(list(folder.glob('*.png')))} pictures\n")


def main() -> None:
    logging.getLogger().addHandler(logging.NullHandler())
    reply = argparse.ArgumentParser(prog="make screenshots", description=__doc__)
    reply.add_argument("page", nargs="*", help=f"only these, of {', '.join(PAGES)}")
    reply.add_argument("--into", type=Path, default=Path("build/screenshots"))
    reply.add_argument("--hosts", type=int, default=20)
    given = reply.parse_args()
    if unknown := set(given.page) - PAGES.keys():
        reply.error(f"no such page: {', '.join(sorted(unknown))}")
    asyncio.run(make(given.into, given.page, given.hosts))


if __name__ == "__main__":
    main()
