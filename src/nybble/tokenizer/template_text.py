"""Text operations of chat templates, each paid for before it is done."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from ..errors import TemplateError
from .template_budget import STEP, budget

MAXIMUM_INDENT = 64


class Counted:
    """An iterable that charges a step for each item it gives."""

    def __init__(self, items: Any) -> None:
        self._items = items

    def __iter__(self) -> Iterator[Any]:
        purse = budget()
        for item in self._items:
            purse.charge(STEP)
            yield item

    def __len__(self) -> int:
        return len(self._items)


def collect(items: Iterable[Any]) -> list[Any]:
    """The items as a list; endless and huge iterables run out of budget instead of memory."""
    return list(iter(Counted(items)))


def text_of(value: object) -> str:
    """``str(value)``, charged by its length."""
    purse = budget()
    if isinstance(value, str):
        purse.charge(len(value))
        return value
    purse.weigh(value)
    return str(value)


def call_text_method(text: str, name: str, arguments: tuple[Any, ...]) -> Any:
    """``text.name(*arguments)`` for a method that may be expensive or make something large."""
    purse = budget()
    if name == "join":
        items = [text_of(item) for item in collect(arguments[0])]
        purse.charge(len(text) * len(items))
        return text.join(items)
    # Some methods look for their argument at every place, character by character.
    lengths = [len(argument) for argument in arguments if isinstance(argument, str)]
    purse.charge(STEP + len(text) + sum(lengths) + len(text) * max(lengths, default=0) // 256)
    if name == "replace" and len(lengths) == 2:
        old, new = arguments[0], arguments[1]
        purse.charge(text.count(old) * len(new))
    result = getattr(text, name)(*arguments)
    if isinstance(result, (list, tuple)):
        purse.weigh(result)
    return result


def concatenate(*values: object) -> str:
    """What ``a ~ b`` means."""
    return "".join([text_of(value) for value in values])


def join(values: Iterable[Any], separator: str = "", attribute: str | int | None = None) -> str:
    """The ``join`` filter; ``attribute`` picks a key of each item."""
    items = collect(values)
    if attribute is not None:
        items = [item[attribute] for item in items]
    return str(call_text_method(text_of(separator), "join", (items,)))


def indent(text: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    """The ``indent`` filter: every line but the first moved to the right; empty lines only if ``blank``."""
    margin = width if isinstance(width, str) else " " * limited(width, MAXIMUM_INDENT)
    lines = text_of(text).split("\n")
    budget().charge(len(lines) * (STEP + len(margin)))
    indented = [
        margin + line if (number or first) and (line or blank or not number) else line
        for number, line in enumerate(lines)
    ]
    return "\n".join(indented)


def limited(value: Any, maximum: int) -> int:
    """``value`` as a whole number from 0 to ``maximum``; TemplateError for others."""
    if not isinstance(value, int) or not 0 <= value <= maximum:
        raise TemplateError(f"it asks for an indent or a precision of {value!r}; at most {maximum} is accepted")
    return value


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """The ``tojson`` filter of chat templates: JSON as it is, where Jinja's own escapes it for HTML."""
    purse = budget()
    purse.weigh(value)
    if indent is not None:
        limited(indent, MAXIMUM_INDENT)
    if separators is not None and sum(map(len, separators)) > MAXIMUM_INDENT:
        raise TemplateError("it asks for JSON with very long separators")
    # With an indent the encoder yields small pieces, so that deep nesting is paid for as it grows.
    encoder = json.JSONEncoder(ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys)
    pieces = []
    for piece in encoder.iterencode(value):
        purse.charge(STEP + len(piece))
        pieces.append(piece)
    text = "".join(pieces)
    return _escaped(text) if ensure_ascii else text


def _escaped(text: str) -> str:
    """``text`` in ASCII, noncharacters excepted: they mark user text and are taken out later."""
    budget().charge(12 * len(text))
    return "".join(
        character if character.isascii() or is_noncharacter(character) else json.dumps(character)[1:-1]
        for character in text
    )


def is_noncharacter(character: str) -> bool:
    """True for the code points U+FDD0 to U+FDEF, which Unicode keeps for use inside programs."""
    return "\ufdd0" <= character <= "\ufdef"
