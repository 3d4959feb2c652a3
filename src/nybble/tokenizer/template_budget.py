"""What one rendering of a chat template may cost: every value it makes and every step it takes is paid for."""

from __future__ import annotations

import time
from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from jinja2.utils import Namespace

from ..errors import TemplateError

STEP = 8
"""Units of one step and of one object in memory; a character is one unit."""
BASE_UNITS = 1 << 22
UNITS_PER_INPUT_UNIT = 64
"""Rendering may cost this much for each unit of the messages, on top of the base."""
MAXIMUM_SECONDS = 5.0
MAXIMUM_INTEGER = 1 << 63


class Budget:
    """Units and seconds left to one rendering; an overdraft raises TemplateError.

    Because making a value costs its size, no value is larger than the budget, and each single operation on values
    ends in milliseconds; the clock is looked at between operations.
    """

    def __init__(self, inputs: Mapping[str, Any]) -> None:
        self._units = self._deadline = float("inf")
        self.weigh(dict(inputs))
        self._units = BASE_UNITS + UNITS_PER_INPUT_UNIT * self._spent
        self._deadline = time.monotonic() + MAXIMUM_SECONDS

    _spent = 0

    def charge(self, units: int) -> None:
        """Pay for ``units`` of work."""
        self._spent += units
        if self._spent > self._units:
            raise TemplateError("it does more work than any chat template needs; it may be made to hang")
        if time.monotonic() > self._deadline:
            raise TemplateError(f"it runs longer than {MAXIMUM_SECONDS:g} seconds; it may be made to hang")

    def weigh(self, value: object) -> None:
        """Pay for ``value`` as it would print: shared parts count each time they occur.

        Without this, lists of lists of one list would print, compare and hash in exponential time.
        """
        pending = [value]
        while pending:
            units = 0
            # Not one charge for each object: a conversation has thousands.
            for _ in range(min(len(pending), 256)):
                item = pending.pop()
                units += STEP
                if isinstance(item, str):
                    units += len(item)
                elif isinstance(item, (list, tuple, KeysView, ValuesView, ItemsView)):
                    self.charge(STEP * len(item))
                    pending.extend(item)
                elif isinstance(item, dict):
                    self.charge(2 * STEP * len(item))
                    pending.extend(item.keys())
                    pending.extend(item.values())
                elif isinstance(item, int):
                    checked_number(item)
                elif isinstance(item, Namespace):
                    # It can be changed after it was weighed, so nothing may contain one.
                    raise TemplateError("it prints a namespace or puts one into a list")
            self.charge(units)


def checked_number(value: Any) -> Any:
    """``value``, unless it is an integer so large that further arithmetic would become slow."""
    if isinstance(value, int) and abs(value) >= MAXIMUM_INTEGER:
        raise TemplateError("it computes with integers of more than 63 bits")
    return value


_current: ContextVar[Budget] = ContextVar("template budget")


def budget() -> Budget:
    """The budget of the rendering under way in this thread."""
    return _current.get()


@contextmanager
def spending(inputs: Mapping[str, Any]) -> Iterator[None]:
    """Render within a fresh budget."""
    token = _current.set(Budget(inputs))
    try:
        yield
    finally:
        _current.reset(token)
