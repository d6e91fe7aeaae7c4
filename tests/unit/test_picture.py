"""The picture of a load: an SVG any viewer can read, whatever the load was."""

import xml.etree.ElementTree as ElementTree

import pytest

from berth.loadtest import Boot, LoadOutcome
from berth.picture import latency_svg

SVG = "{http://www.w3.org/2000/svg}"


def an_outcome(boots: int, seconds: float = 10.0, latency: float = 0.05) -> LoadOutcome:
    return LoadOutcome(
        {
            str(number): Boot(
                asked=seconds * number / boots, ended=seconds * number / boots + latency, status="active"
            )
            for number in range(boots)
        },
        seconds,
    )


def words_of(svg: str) -> list[str]:
    return [text.text or "" for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]


@pytest.mark.parametrize(
    "result",
    [
        an_outcome(1),
        an_outcome(2, latency=0.0001),
        an_outcome(100),
        an_outcome(9000, latency=70.0),
        LoadOutcome({"a": Boot(asked=0.0, ended=0.0, status="active")}, 0.0),
        LoadOutcome({"a": Boot(asked=0.0)}, 0.0),
        LoadOutcome({}, 0.0),
    ],
    ids=["one", "two quick ones", "a hundred", "thousands of slow ones", "at once", "all lost", "nothing"],
)
def test_it_is_well_formed_and_stays_inside_the_page(result: LoadOutcome) -> None:
    page = ElementTree.fromstring(latency_svg(result, "a title"))
    assert page.tag == f"{SVG}svg"
    _, _, width, height = (float(number) for number in page.attrib["viewBox"].split())
    for dot in page.iter(f"{SVG}circle"):
        assert 0 <= float(dot.attrib["cx"]) <= width
        assert 0 <= float(dot.attrib["cy"]) <= height
    for bar in page.iter(f"{SVG}rect"):
        assert not bar.attrib["width"].startswith("-")
        assert not bar.attrib["height"].startswith("-")


def test_of_very_many_boots_it_shows_some() -> None:
    dots = list(ElementTree.fromstring(latency_svg(an_outcome(20_000), "many")).iter(f"{SVG}circle"))
    assert 4_000 <= len(dots) <= 8_000


def test_an_empty_load_says_so() -> None:
    assert words_of(latency_svg(LoadOutcome({}, 0.0), "nothing")) == ["nothing", "no boot ended"]
