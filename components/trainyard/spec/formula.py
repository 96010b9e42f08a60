"""Expressions over the columns of a table, in `derive` and `where`: parsed and typed, never executed.

They use Python syntax, restricted to `GRAMMAR`. `quality.tables.formulas` computes them with Arrow, `data.formulas`
with TensorFlow in the served graph.
"""

from __future__ import annotations

import ast
import keyword
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from trainyard.values.patterns import MAX_EXACT
from trainyard.values.text import canonical, column_name

Kind = Literal["number", "text", "truth"]

GRAMMAR = (
    "numbers, 'texts', columns (column('any name') where the name is no plain word), + - * /, == != < <= > >=, "
    "in [...], and, or, not, abs(x), log(x), missing(x), bin(x, width), join(x, y)"
)

_ARITHMETIC: dict[type[ast.operator], str] = {
    ast.Add: "add",
    ast.Sub: "subtract",
    ast.Mult: "multiply",
    ast.Div: "divide",
}
_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Eq: "equal",
    ast.NotEq: "not_equal",
    ast.Lt: "less",
    ast.LtE: "less_equal",
    ast.Gt: "greater",
    ast.GtE: "greater_equal",
}
COMPARISONS = frozenset(_COMPARISONS.values())
"""The kernels that compare. A feature's numbers are compared in 32 bits, as the model gets them: 0.1 equals 0.1."""

_FUNCTIONS = {"abs": "abs", "log": "ln"}
_ORDERS = frozenset(("less", "less_equal", "greater", "greater_equal"))
_SHOWN = 60

BIN = "bin"
"""The only kernel that is not Arrow's: the number of the bin, floor(x / width), as text."""

MAX_BINS = 2.0**53
"""The limit of bin numbers: above it float64 does not represent every whole number."""

JOINT = " & "
"""The separator of `join`."""


@dataclass(frozen=True)
class Constant:
    """A constant in the expression."""

    value: float | str | bool
    kind: Kind


@dataclass(frozen=True)
class Cell:
    """A row's value in `column`, read as a number or as a text."""

    column: str
    kind: Kind


@dataclass(frozen=True)
class Call:
    """The result of Arrow's function `kernel`, or `BIN`, for `arguments`."""

    kernel: str
    arguments: tuple[Node, ...]
    kind: Kind


Node = Constant | Cell | Call


@lru_cache(1024)
def parse(text: str) -> Node:
    """Parse the expression `text`. Raises `ValueError` with a sentence if it is invalid.

    >>> parse("fare > 2").kind
    'truth'
    """
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        node = _node(tree, _natural(tree) or "text")
        if not columns(node):
            raise ValueError("names no column of the data")
        return node
    except SyntaxError as error:
        raise ValueError(f"is no expression ({error.msg}). Allowed: {GRAMMAR}") from error
    except (RecursionError, MemoryError) as error:
        raise ValueError("is nested too deeply. Write it in fewer parts") from error


def reference(name: str) -> str:
    """Return the column `name` as an expression.

    >>> reference("fare"), reference("total fare")
    ('fare', "column('total fare')")
    """
    return name if name.isascii() and name.isidentifier() and not keyword.iskeyword(name) else f"column({name!r})"


def as_lists(node: Node) -> list[Any]:
    """Return `node` as JSON holds it, for whoever computes it without this parser.

    >>> as_lists(parse("fare > 2"))
    ['call', 'greater', ['cell', 'fare'], ['constant', 2.0]]
    """
    if isinstance(node, Constant):
        return ["constant", node.value]
    if isinstance(node, Cell):
        return ["cell", node.column]
    return ["call", node.kernel, *map(as_lists, node.arguments)]


def columns(node: Node) -> dict[str, Kind]:
    """Return the columns of `node` in order with the kind each is read as; number if as both."""
    by_name: dict[str, Kind] = {}
    for cell, _ in _cells(node):
        by_name[cell.column] = "number" if "number" in (cell.kind, by_name.get(cell.column)) else cell.kind
    return by_name


def kinds(formulas: Iterable[str]) -> dict[str, Kind]:
    """Return the columns that `formulas` read with their kinds; text if only tested for missing values."""
    by_column: dict[str, Kind] = {}
    for text in formulas:
        for cell, is_asked in _cells(parse(text)):
            if is_asked:
                by_column.setdefault(cell.column, "text")
            elif cell.kind == "number" or cell.column not in by_column:
                by_column[cell.column] = cell.kind
    return by_column


def mixed(node: Node, kinds: Mapping[str, Kind]) -> str | None:
    """Return a column that `node` reads as another kind than `kinds`, except in a test for missing values."""
    return next(
        (cell.column for cell, is_asked in _cells(node) if not is_asked and kinds[cell.column] != cell.kind), None
    )


def orders_texts(node: Node) -> bool:
    """Return True if `node` compares two texts by alphabetical order."""
    if not isinstance(node, Call):
        return False
    own = node.kernel in _ORDERS and node.arguments[0].kind == "text"
    return own or any(orders_texts(argument) for argument in node.arguments)


def _cells(node: Node, *, asked: bool = False) -> Iterator[tuple[Cell, bool]]:
    if isinstance(node, Cell):
        yield node, asked
    elif isinstance(node, Call):
        for argument in node.arguments:
            yield from _cells(argument, asked=node.kernel == "is_null")


def _is_formula(text: str) -> str:
    parse(text)
    return text


def _is_condition(text: str) -> str:
    if parse(text).kind != "truth":
        raise ValueError("is no condition. Compare it with something, as in fare > 0")
    return text


_Text = Annotated[str, Field(min_length=1, max_length=1000)]
Formula = Annotated[_Text, AfterValidator(_is_formula)]
Condition = Annotated[_Text, AfterValidator(_is_condition)]


def _natural(tree: ast.expr) -> Kind | None:
    """Return the kind of `tree` independent of its context, None for a column."""
    if isinstance(tree, ast.Constant):
        kind: Kind = "truth" if isinstance(tree.value, bool) else "text" if isinstance(tree.value, str) else "number"
        return kind
    if isinstance(tree, ast.Compare | ast.BoolOp) or _calls(tree, "missing"):
        return "truth"
    if isinstance(tree, ast.UnaryOp):
        return "truth" if isinstance(tree.op, ast.Not) else "number"
    if _calls(tree, "bin") or _calls(tree, "join"):
        return "text"
    return None if isinstance(tree, ast.Name) or _calls(tree, "column") else "number"


def _node(tree: ast.expr, kind: Kind) -> Node:
    natural = _natural(tree)
    if natural not in (None, kind):
        raise ValueError(f"'{_source(tree)}' is a {natural}, where a {kind} is expected")
    match tree:
        case ast.Constant(value=bool() | int() | float() | str() as value):
            if isinstance(value, int) and abs(value) >= MAX_EXACT:
                raise _inexact(tree)
            return Constant(value if isinstance(value, bool | str) else float(value), kind)
        case ast.Name(id=name):
            return _cell(name, kind)
        case ast.Call(func=ast.Name(id="column"), args=[ast.Constant(value=str() as name)], keywords=[]):
            return _cell(name, kind)
        case ast.Call(func=ast.Name(id="missing"), args=[argument], keywords=[]):
            return Call("is_null", (_node(argument, _natural(argument) or "text"),), "truth")
        case ast.Call(func=ast.Name(id="bin"), args=[argument, ast.Constant(value=int() | float() as width)]):
            if width <= 0:
                raise ValueError(f"'{_source(tree)}' has bins of no width. Give one above 0")
            return Call(BIN, (_node(argument, "number"), Constant(float(width), "number")), "text")
        case ast.Call(func=ast.Name(id="join"), args=[_, _, *_] as arguments, keywords=[]):
            parts = [_named(argument) for argument in arguments]
            return Call("binary_join_element_wise", (*parts, Constant(JOINT, "text")), "text")
        case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]) if name in _FUNCTIONS:
            return Call(_FUNCTIONS[name], (_node(argument, "number"),), "number")
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _ARITHMETIC:
            return Call(_ARITHMETIC[type(operator)], (_node(left, "number"), _node(right, "number")), "number")
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return Call("negate", (_node(operand, "number"),), "number")
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return Call("invert", (_node(operand, "truth"),), "truth")
        case ast.BoolOp(op=operator, values=values):
            kernel = "and_kleene" if isinstance(operator, ast.And) else "or_kleene"
            return _joined(kernel, [_node(value, "truth") for value in values])
        case ast.Compare(left=left, ops=operators, comparators=comparators):
            pairs = zip([left, *comparators], operators, comparators, strict=False)
            return _joined("and_kleene", [_comparison(*pair) for pair in pairs])
    raise ValueError(f"'{_source(tree)}' is not allowed. Allowed: {GRAMMAR}")


def _named(tree: ast.expr) -> Node:
    """Return the text of `tree` where texts are joined: true or false for a condition."""
    if _natural(tree) != "truth":
        return _node(tree, "text")
    return Call("if_else", (_node(tree, "truth"), Constant("true", "text"), Constant("false", "text")), "text")


def _comparison(left: ast.expr, operator: ast.cmpop, right: ast.expr) -> Node:
    if isinstance(operator, ast.In | ast.NotIn):
        if not isinstance(right, ast.List | ast.Tuple) or not right.elts:
            raise ValueError(f"'{_source(right)}' is no list of values, such as ['a', 'b']")
        among = _joined("or_kleene", [_comparison(left, ast.Eq(), value) for value in right.elts])
        return Call("invert", (among,), "truth") if isinstance(operator, ast.NotIn) else among
    if type(operator) not in _COMPARISONS:
        raise ValueError(f"'{_source(left)}' has a comparison that is not allowed. Allowed: {GRAMMAR}")
    equality = isinstance(operator, ast.Eq | ast.NotEq)
    kind = _natural(left) or _natural(right) or ("text" if equality else "number")
    sides = (_compared(left, kind, equality=equality), _compared(right, kind, equality=equality))
    return Call(_COMPARISONS[type(operator)], sides, "truth")


def _compared(tree: ast.expr, kind: Kind, *, equality: bool) -> Node:
    """Return one side of a comparison, with canonical text. Raises `ValueError` if it equals several integers."""
    node = _node(tree, kind)
    if not isinstance(node, Constant):
        return node
    if isinstance(node.value, str):
        return Constant(canonical(node.value), kind)
    if equality and abs(node.value) >= MAX_EXACT:
        raise _inexact(tree)
    return node


def _inexact(number: ast.expr) -> ValueError:
    text = _source(number)
    return ValueError(
        f"{text} is compared as a 64-bit float, which from 2^53 on stands for several integers. "
        f"Write it as a text, as in account == '{text}'"
    )


def _joined(kernel: str, nodes: list[Node]) -> Node:
    """Return the nodes joined pairwise."""
    joined = nodes[0]
    for node in nodes[1:]:
        joined = Call(kernel, (joined, node), "truth")
    return joined


def _cell(name: str, kind: Kind) -> Cell:
    if kind == "truth":
        raise ValueError(f"the column '{name[:_SHOWN]}' is no condition. Compare it, as in {name[:_SHOWN]} == 'yes'")
    return Cell(column_name(name), kind)


def _calls(tree: ast.expr, name: str) -> bool:
    return isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and tree.func.id == name


def _source(tree: ast.expr) -> str:
    return ast.unparse(tree)[:_SHOWN]
