"""The Jinja environment of chat templates: an allow-list of what a template may touch, and a price on all it does.

Templates come from model files, so they are hostile input. The sandbox keeps them from reaching Python; rewriting
the parsed template keeps them from using up time and memory (see ``template_budget``).
"""

from __future__ import annotations

import re
from datetime import datetime
from types import BuiltinMethodType
from typing import Any, NoReturn

import jinja2.nodes as nodes
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace, pass_context
from jinja2.visitor import NodeTransformer

from ..errors import TemplateError
from .template_budget import STEP, budget, checked_number
from .template_filters import CHAT_FILTERS, CHAT_TESTS
from .template_text import Counted, call_text_method, concatenate, text_of

MAXIMUM_RANGE = 100_000

_TEXT_METHODS = frozenset(
    (
        *("capitalize", "count", "endswith", "find", "index", "join", "lower", "lstrip", "partition", "removeprefix"),
        *("removesuffix", "replace", "rfind", "rindex", "rpartition", "rsplit", "rstrip", "split", "splitlines"),
        *("startswith", "strip", "title", "upper"),
        *("isalnum", "isalpha", "isascii", "isdecimal", "isdigit", "islower", "isnumeric", "isspace", "isupper"),
    )
)
_LOOP_ATTRIBUTES = frozenset(
    (
        *("changed", "cycle", "depth", "depth0", "first", "index", "index0", "last", "length", "nextitem"),
        *("previtem", "revindex", "revindex0"),
    )
)
_ATTRIBUTES: tuple[tuple[type, frozenset[str]], ...] = (
    (str, _TEXT_METHODS),
    (dict, frozenset(("get", "items", "keys", "values"))),
    (list, frozenset(("count", "index"))),
    (tuple, frozenset(("count", "index"))),
    (LoopContext, _LOOP_ATTRIBUTES),
)
_FORBIDDEN_NODES = (
    nodes.Block,
    nodes.EvalContextModifier,
    nodes.Extends,
    nodes.FromImport,
    nodes.Import,
    nodes.Include,
    nodes.ScopedEvalContextModifier,
)


class GenerationExtension(Extension):
    """``{% generation %}`` marks the assistant's words for training; here it changes nothing."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own convention

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The nodes between the tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """Jinja as chat templates expect it (Hugging Face's conventions), within a budget."""

    intercepted_binops = frozenset(("+", "*", "%", "**"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            # Folding constants would compute them outside any budget.
            optimized=False,
            finalize=_charge_output,
            extensions=(LoopControlExtension, GenerationExtension),
        )
        self.filters = dict(CHAT_FILTERS)
        self.tests = dict(CHAT_TESTS)
        self.globals = {
            "dict": dict,
            "namespace": Namespace,
            "raise_exception": _raise_exception,
            "range": _range,
            "strftime_now": _strftime_now,
        }
        self.concatenate = concatenate
        self.counted = Counted
        self.weighed = _weighed
        self.sliced = _sliced

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """True for what the allow-list has; everything else in Python is out of reach."""
        budget().charge(STEP)
        if isinstance(obj, Namespace):
            return not attr.startswith("_")
        return any(isinstance(obj, kind) and attr in names for kind, names in _ATTRIBUTES)

    def unsafe_undefined(self, obj: Any, attribute: str) -> NoReturn:
        """Says so at once, where Jinja would go on with an undefined value."""
        raise TemplateError(f"it reads {attribute[:64]!r} of a {type(obj).__name__}, which is not supported")

    def wrap_str_format(self, value: Any) -> None:
        """``format`` pads to any width, so it is left to ``is_safe_attribute`` to refuse."""
        return None

    def getitem(self, obj: Any, argument: Any) -> Any:
        """``obj[argument]``."""
        budget().charge(STEP)
        if isinstance(argument, tuple):
            budget().weigh(argument)
        return super().getitem(obj, argument)

    def call(self, context: Context, obj: Any, /, *arguments: Any, **options: Any) -> Any:
        """Every call in a template."""
        budget().charge(STEP)
        owner = getattr(obj, "__self__", None)
        if isinstance(obj, BuiltinMethodType) and isinstance(owner, str):
            # Jinja passes loop variables to every call; the keywords of text methods are limits, last by position too.
            keywords = [value for name, value in options.items() if name not in ("_block_vars", "_loop_vars")]
            return call_text_method(owner, obj.__name__, (*arguments, *keywords))
        if isinstance(owner, (list, tuple)):
            budget().weigh(owner)
        if isinstance(owner, (dict, list, tuple, LoopContext)) or obj in (dict, Namespace):
            # These compare or hash what they are given.
            budget().weigh(arguments)
        if isinstance(obj, LoopContext) and arguments:
            arguments = (Counted(arguments[0]), *arguments[1:])
        result = super().call(context, obj, *arguments, **options)
        return _weighed(result) if obj is dict else result

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """The operators whose result may be larger than their operands."""
        purse = budget()
        purse.charge(STEP)
        sized = [side for side in (left, right) if isinstance(side, (str, list, tuple))]
        if operator == "+" and len(sized) == 2:
            purse.charge(sum(map(_storage, sized)))
        elif operator == "*" and len(sized) == 1:
            times = right if sized[0] is left else left
            purse.charge(_storage(sized[0]) * max(0, times))
        elif operator == "%" and isinstance(left, str):
            raise TemplateError("it formats text with %, which is not supported; use ~ to join texts")
        elif operator == "**" and isinstance(right, int) and abs(right) > 64 and abs(left) > 1:
            raise TemplateError("it raises a number to a power above 64")
        return checked_number(super().call_binop(context, operator, left, right))


class PricedTemplate(NodeTransformer):
    """Rewrites a parsed template so that all it does passes the environment, and notes its text constants."""

    def __init__(self) -> None:
        self.phrases: set[str] = set()

    def generic_visit(self, node: nodes.Node, *arguments: Any, **options: Any) -> nodes.Node:
        """Refuse what chat templates have no use for."""
        if isinstance(node, _FORBIDDEN_NODES):
            kind = type(node).__name__.lower()
            raise TemplateError(f"line {node.lineno}: {kind} is not supported in chat templates")
        return super().generic_visit(node, *arguments, **options)

    def visit_Const(self, node: nodes.Const) -> nodes.Node:  # noqa: N802 - named by Jinja's visitor
        """Note a text the template may compare with."""
        if isinstance(node.value, str):
            self.phrases.add(node.value)
        return node

    def visit_TemplateData(self, node: nodes.TemplateData) -> nodes.Node:  # noqa: N802
        """Literal output, as a constant: that passes the environment's finalize."""
        return nodes.Const(node.data, lineno=node.lineno)

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        """Count the rounds of a loop."""
        self.generic_visit(node)
        node.iter = _through("counted", node.iter)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        """``a ~ b``."""
        self.generic_visit(node)
        return _through("concatenate", *node.nodes)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        """Comparing walks through both sides."""
        self.generic_visit(node)
        node.expr = _weighed_node(node.expr)
        for operand in node.ops:
            operand.expr = _weighed_node(operand.expr)
        return node

    def visit_List(self, node: nodes.List) -> nodes.Node:  # noqa: N802
        """A list made by the template."""
        self.generic_visit(node)
        return _weighed_node(node)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:  # noqa: N802
        """A dictionary made by the template."""
        self.generic_visit(node)
        return _weighed_node(node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:  # noqa: N802
        """A tuple made by the template; as the target of an assignment it is none."""
        self.generic_visit(node)
        return node if node.ctx == "store" else _weighed_node(node)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Expr:  # noqa: N802
        """A slice copies."""
        self.generic_visit(node)
        return _through("sliced", node) if isinstance(node.arg, nodes.Slice) else node


def _through(name: str, *arguments: nodes.Node) -> nodes.Expr:
    method = nodes.EnvironmentAttribute(name)
    return nodes.Call(method, list(arguments), [], None, None, lineno=arguments[0].lineno)


def _weighed_node(node: nodes.Expr) -> nodes.Expr:
    constant = isinstance(node, nodes.Const) or (
        isinstance(node, (nodes.List, nodes.Tuple)) and all(isinstance(item, nodes.Const) for item in node.items)
    )
    return node if constant else _through("weighed", node)


def _weighed(value: Any) -> Any:
    budget().weigh(value)
    return value


def _sliced(value: Any) -> Any:
    budget().charge(STEP + _storage(value))
    return value


def _storage(value: str | list[Any] | tuple[Any, ...]) -> int:
    return len(value) if isinstance(value, str) else STEP * len(value)


@pass_context
def _charge_output(_: Context, value: Any) -> Any:
    return value if isinstance(value, Undefined) else text_of(value)


def _range(*bounds: int) -> range:
    numbers = range(*bounds)
    if len(numbers) > MAXIMUM_RANGE:
        raise TemplateError(f"it asks for a range of {len(numbers)} numbers; at most {MAXIMUM_RANGE}")
    return numbers


def _raise_exception(message: object) -> NoReturn:
    raise TemplateError(f"it does not accept this conversation: {text_of(message)}")


def _strftime_now(pattern: str) -> str:
    # The C library pads a field to any width it is asked for, so widths are refused.
    if len(pattern) > 128 or re.search("%(?!-?[A-Za-z%])", pattern):
        raise TemplateError(f"it asks for the date in the form {pattern[:128]!r}, which is not supported")
    return datetime.now().strftime(pattern)
