"""Undoes the completed steps of a command that fails."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from berth.kit.terminal import complain

Undo = Callable[[str, Callable[[], Awaitable[object]]], None]


@asynccontextmanager
async def undone_on_failure() -> AsyncIterator[Undo]:
    """Yield a function that registers how to undo a step. If the `with` block raises, undo the steps, the
    last one first.
    """
    steps: list[tuple[str, Callable[[], Awaitable[object]]]] = []
    try:
        yield lambda label, step: steps.append((label, step))
    except BaseException:
        for label, step in reversed(steps):
            try:
                await step()
            except Exception as problem:
                complain.print(f"{label} could not be deleted again: {problem}", style="red", markup=False)
        raise
