"""Samples the Python stacks of this process, and draws the samples as a flame graph."""

import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from bus.clock import monotonic

THREAD = "support"  # name of the threads that collect support data, which are not sampled
PERIOD = 0.01  # seconds between two samples
_DEPTH = 150  # innermost frames of a stack
_WIDTH, _ROW = 1200, 17  # pixels
_NARROWEST = 0.3  # pixels; narrower boxes are not drawn
_PICTURE = Path(__file__).with_name("flame.svg.jinja")
_OURS = (
    "berth", "bus", "cell_conductor", "compute_sim", "control_room", "ironic_sync", "features",
    "placement_worker", "scheduler_worker",
)  # fmt: skip


def sampled_stacks(seconds: float, period: float = PERIOD) -> Counter[str]:
    """Sample all threads for some seconds, except threads that collect support data. Return how often each
    stack was seen, as a text "thread;module.function;module.function" with the outermost function first.
    """
    counts: Counter[str] = Counter()
    end = monotonic() + seconds
    while (now := monotonic()) < end:
        names = {thread.ident: thread.name.rstrip("0123456789_-") for thread in threading.enumerate()}
        names = {id_: name for id_, name in names.items() if name != THREAD}
        frames = sys._current_frames()
        counts.update(";".join([names[id_], *_calls(frame)]) for id_, frame in frames.items() if id_ in names)
        del frames
        time.sleep(max(now + period - monotonic(), 0.0))
    return counts


def _calls(frame: FrameType | None) -> list[str]:
    calls: list[str] = []
    while frame is not None and len(calls) < _DEPTH:
        calls.append(f"{frame.f_globals.get('__name__', '?')}.{frame.f_code.co_qualname}".replace(";", ":"))
        frame = frame.f_back
    return calls[::-1]


@dataclass
class _Call:
    """A function in the flame graph, under its caller, with its number of samples."""

    samples: int = 0
    callees: dict[str, "_Call"] = field(default_factory=dict)

    def add(self, calls: list[str], samples: int) -> None:
        call = self
        call.samples += samples
        for name in calls:
            call = call.callees.setdefault(name, _Call())
            call.samples += samples

    def depth(self) -> int:
        return 1 + max((callee.depth() for callee in self.callees.values()), default=0)

    def boxes(self, left: float, row: int, each: float) -> Iterator[tuple[float, int, str, "_Call"]]:
        """Yield the left edge, row, name and call of each callee at any depth that is wide enough to draw.

        The first direct callee is at the left edge `left` in `row`; `each` is the width of one sample.
        """
        for name, callee in sorted(self.callees.items()):
            if callee.samples * each >= _NARROWEST:
                yield left, row, name, callee
                yield from callee.boxes(left, row + 1, each)
            left += callee.samples * each


def flame_graph(stacks: Mapping[str, int], title: str) -> str:
    """Return an SVG in which the width of each function is its share of the samples, callees below it."""
    from jinja2 import Environment, StrictUndefined

    root = _Call()
    for stack, samples in stacks.items():
        root.add(stack.split(";"), samples)
    each = _WIDTH / max(root.samples, 1)
    boxes = [
        {
            "x": left,
            "y": row * _ROW,
            "width": call.samples * each,
            "name": name,
            "label": name[: int(call.samples * each / 6.5)],
            "share": call.samples / root.samples,
            "samples": call.samples,
            "colour": _colour(name, row),
        }
        for left, row, name, call in root.boxes(0.0, 0, each)
    ]
    template = Environment(autoescape=True, undefined=StrictUndefined).from_string(_PICTURE.read_text())
    height = (root.depth() - 1) * _ROW
    return template.render(title=title, width=_WIDTH, row=_ROW, height=height, boxes=boxes)


def _colour(name: str, row: int) -> str:
    if row == 0:
        return "#d0d0d0"  # the box of a thread
    return "#f4a259" if name.partition(".")[0] in _OURS else "#9fc0de"
