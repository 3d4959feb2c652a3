"""The filters and tests chat templates may use: Jinja's own where they are safe, ours where they could blow up."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, cast

from jinja2.filters import FILTERS
from jinja2.tests import TESTS
from jinja2.utils import pass_environment

from .template_budget import STEP, budget, checked_number
from .template_text import Counted, call_text_method, collect, indent, join, limited, text_of, to_json

_CHEAP = ("abs", "count", "d", "default", "first", "float", "int", "items", "last", "length")
_LAZY = ("map", "reject", "rejectattr", "select", "selectattr")
_COLLECTING = ("dictsort", "max", "min", "sort", "unique")
_COMPARING = ("!=", "<", "<=", "==", ">", ">=", "eq", "equalto", "ge", "greaterthan", "gt", "in", "le", "lessthan")
_COMPARING_TESTS = frozenset((*_COMPARING, "lt", "ne"))


def _stepping(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def step(*arguments: Any, **options: Any) -> Any:
        budget().charge(STEP)
        return checked_number(function(*arguments, **options))

    return step


def _lazy(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def count(*arguments: Any, **options: Any) -> Iterable[Any]:
        return iter(Counted(function(*arguments, **options)))

    return count


def _comparing(function: Callable[..., bool]) -> Callable[..., bool]:
    @functools.wraps(function)
    def compare(*operands: Any) -> bool:
        for operand in operands:
            budget().weigh(operand)
        return function(*operands)

    return compare


def _collecting(function: Callable[..., Any]) -> Callable[..., Any]:
    """For filters that take the environment and compare all the items of one collection with each other."""

    @functools.wraps(function)
    def compare(environment: Any, items: Any, *arguments: Any, **options: Any) -> Any:
        if not isinstance(items, dict):
            items = collect(items)
        budget().weigh(items)
        result = function(environment, items, *arguments, **options)
        return iter(Counted(result)) if function is FILTERS["unique"] else result

    return compare


def _dictsort(_: Any, items: dict[Any, Any], *arguments: Any, **options: Any) -> Any:
    return FILTERS["dictsort"](items, *arguments, **options)


def _text_filter(name: str) -> Callable[..., Any]:
    def apply(value: Any, *arguments: Any) -> Any:
        return call_text_method(text_of(value), name, arguments)

    return apply


def _reverse(value: Any) -> Any:
    return text_of(value)[::-1] if isinstance(value, str) else collect(value)[::-1]


def _round(value: Any, precision: int = 0, method: str = "common") -> Any:
    return FILTERS["round"](value, limited(precision, 16), method)


@pass_environment
def _sum(environment: Any, items: Iterable[Any], attribute: str | int | None = None, start: float = 0) -> Any:
    total = start + 0
    for item in Counted(items):
        total = checked_number(total + (item if attribute is None else environment.getitem(item, attribute)))
    return total


CHAT_FILTERS: dict[str, Callable[..., Any]] = {
    **{name: _stepping(FILTERS[name]) for name in _CHEAP},
    **{name: _lazy(FILTERS[name]) for name in _LAZY},
    **{name: _collecting(FILTERS[name]) for name in _COLLECTING if name != "dictsort"},
    **{name: _text_filter(name) for name in ("capitalize", "lower", "replace", "title", "upper")},
    "dictsort": pass_environment(_collecting(_dictsort)),
    "indent": indent,
    "join": join,
    "list": collect,
    "reverse": _reverse,
    "round": _round,
    "safe": text_of,
    "string": text_of,
    "sum": _sum,
    "tojson": to_json,
    "trim": _text_filter("strip"),
}

CHAT_TESTS: dict[str, Callable[..., Any]] = {
    name: _comparing(test) if name in _COMPARING_TESTS else _stepping(test)
    for name, test in cast(dict[str, Callable[..., Any]], TESTS).items()
}
