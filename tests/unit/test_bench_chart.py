"""The picture of a run: bars of every load it has, old and new, all on the page."""

import xml.etree.ElementTree as ElementTree

import pytest

from bench.chart import chart_svg
from bench.figures import BenchRun, Figure, MachineFacts, Measured, Yardstick

SVG = "{http://www.w3.org/2000/svg}"
MACHINE = MachineFacts(processor="one", cores=2, load=0.0, python="3", rabbitmq="3", postgresql="15")


def a_run(
    commit: str = "new", factor: float = 1.0, benches: tuple[str, ...] = ("boots", "one_flavor")
) -> BenchRun:
    figures = (
        Figure("boots/s", 2000.0 / factor, "/s", "up"),
        Figure("processor a boot", 0.9 * factor, "ms", "down", "processor"),
        Figure("processor of compute", 0.3 * factor, "ms", "down", "processor"),
        Figure("processor of PostgreSQL", 0.2 * factor, "ms", "down", "processor"),
        Figure("processor of scheduler", 0.001 * factor, "ms", "down", "processor"),
    )
    measured = Measured(figures, Yardstick(1.0, 1.0), 1.0)
    return BenchRun(
        at="", commit=commit, long=False, machine=MACHINE, benches=dict.fromkeys(benches, measured)
    )


@pytest.mark.parametrize(
    ("run", "before"),
    [
        (a_run(), None),
        (a_run(), a_run("old", 4.0)),
        (a_run(factor=1000.0), a_run("old")),
        (a_run(benches=("boots",)), a_run("old", benches=("one_flavor",))),
        (a_run(benches=()), a_run("old")),
    ],
    ids=["alone", "better", "far worse", "another load", "no loads"],
)
def test_every_figure_is_drawn_in_its_half_of_the_chart(run: BenchRun, before: BenchRun | None) -> None:
    page = ElementTree.fromstring(chart_svg(run, before))
    _, _, width, height = (float(number) for number in page.attrib["viewBox"].split())
    bars = [element.attrib for element in page.iter(f"{SVG}rect") if element.attrib["width"] != "100%"]
    for bar in bars:
        assert float(bar["width"]) >= 0
        assert float(bar["x"]) + float(bar["width"]) <= width - 60  # behind it is a number
        assert float(bar["y"]) + float(bar["height"]) <= height
    for text in page.iter(f"{SVG}text"):
        long = 6.5 * len(text.text or "")
        starts = float(text.attrib["x"]) - long * {"end": 1.0, "middle": 0.5}.get(
            text.attrib.get("text-anchor", ""), 0.0
        )
        assert starts >= 0
        assert starts + long <= width
