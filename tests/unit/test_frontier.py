"""The best hosts, page by page: all pages together give the complete order."""

import random

import numpy as np
import pytest

from bus.candidates import Ints
from scheduler_worker.core.frontier import AHEAD, FIRST_PAGE, Frontier
from scheduler_worker.core.tie_break import Uints

MANY = 6 * AHEAD * FIRST_PAGE


@pytest.mark.parametrize("count", [0, 1, FIRST_PAGE, 3 * FIRST_PAGE, MANY])
@pytest.mark.parametrize("levels", [1, 2, 4, 40, 10**9], ids=lambda levels: f"{levels} worths")
def test_all_pages_together_are_the_order(count: int, levels: int) -> None:
    chance = random.Random(f"{count} {levels}")
    worth = np.array([chance.randrange(levels) / 7 for _ in range(2 * count)])
    ties: Uints = np.array(chance.sample(range(10**6), 2 * count), np.uint64)
    among = np.array(sorted(chance.sample(range(2 * count), count)), np.intp)

    def its_ties(indices: Ints) -> Uints:
        return ties[indices]

    frontier, seen, pages = Frontier(worth, among, its_ties), list[int](), list[int]()
    while (page := frontier.page())[0].size:
        assert page[1].tolist() == ties[page[0]].tolist()
        seen += page[0].tolist()
        pages.append(page[0].size)
    assert seen == sorted(among.tolist(), key=lambda index: (-worth[index], ties[index]))
    assert not pages or min(pages[0], count) <= 2 * FIRST_PAGE
