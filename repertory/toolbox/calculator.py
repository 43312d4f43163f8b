"""Arithmetic for the model: an expression is parsed and folded, never evaluated as Python.

Every intermediate number is bounded, so no expression can block the process: integers by bits, powers before they are
computed, the text by its length and the tree by its depth.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

from repertory.backends.tools.decorator import tool
from repertory.errors import Invalid

EXPRESSION_CHARACTERS_MAX = 1_000
DEPTH_MAX = 250
INTEGER_BITS_MAX = 8_192
ROUND_DIGITS_MAX = 300

Number = int | float

_CONSTANTS: Mapping[str, float] = {"pi": math.pi, "e": math.e, "tau": math.tau}


def _power(base: Number, exponent: Number) -> Number:
    """A power whose size was checked before. Errors: `Invalid`, also where the result would be a complex number."""
    if base < 0 and not float(exponent).is_integer():
        raise Invalid("a negative number has no real power with a fraction as exponent", base=base, exponent=exponent)
    if isinstance(base, int) and isinstance(exponent, int) and abs(base) > 1:
        bits = base.bit_length() * abs(exponent)
        if bits > INTEGER_BITS_MAX:
            raise Invalid("the power is too large", base_bits=base.bit_length(), exponent_bits=exponent.bit_length())
    return base**exponent


def _round(number: Number, digits: int = 0) -> Number:
    """Rounding to a bounded number of digits: `round` of an integer to -n digits computes ten to the power n."""
    if abs(digits) > ROUND_DIGITS_MAX:
        raise Invalid("the number of digits is too large", digits_max=ROUND_DIGITS_MAX)
    return round(number, digits) if digits else round(number)


_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "abs": abs,
    "ceil": math.ceil,
    "cos": math.cos,
    "exp": math.exp,
    "floor": math.floor,
    "log": math.log,
    "log10": math.log10,
    "max": max,
    "min": min,
    "round": _round,
    "sin": math.sin,
    "sqrt": math.sqrt,
    "tan": math.tan,
}
_UNARY: Mapping[type[ast.unaryop], Callable[[Any], Any]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}
_BINARY: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda left, right: left / right,
    ast.FloorDiv: lambda left, right: left // right,
    ast.Mod: operator.mod,
    ast.Pow: _power,
}


@tool(effects=False, idempotent=True)
def calculator(expression: str) -> int | float:
    """Calculate the value of an arithmetic expression.

    Knows + - * / // % **, parentheses, the constants pi, e and tau, and the functions abs, ceil, cos, exp, floor, log,
    log10, max, min, round, sin, sqrt and tan.

    Args:
        expression: For example "123 * 456" or "sqrt(2) ** 3".
    """
    if len(expression) > EXPRESSION_CHARACTERS_MAX:
        raise Invalid(
            "the expression is too long", characters=len(expression), characters_max=EXPRESSION_CHARACTERS_MAX
        )
    try:
        tree = ast.parse(expression.strip(), mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise Invalid("not an arithmetic expression", expression=expression) from error
    try:
        return _value(tree.body, 0)
    except (ArithmeticError, ValueError, TypeError, RecursionError) as error:
        if isinstance(error, Invalid):
            raise
        raise Invalid(str(error) or "the expression has no value", expression=expression) from error


def _value(node: ast.expr, depth: int) -> Number:
    if depth > DEPTH_MAX:
        raise Invalid("the expression is nested too deeply", depth_max=DEPTH_MAX)
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return _bounded(number)
        case ast.Name(id=name) if name in _CONSTANTS:
            return _CONSTANTS[name]
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _UNARY:
            return _UNARY[type(op)](_value(operand, depth + 1))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _bounded(_BINARY[type(op)](_value(left, depth + 1), _value(right, depth + 1)))
        case ast.BinOp(op=ast.BitXor()):
            raise Invalid("^ is not known; a power is written **")
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _FUNCTIONS:
            return _bounded(_FUNCTIONS[name](*(_value(argument, depth + 1) for argument in arguments)))
        case _:
            raise Invalid("the expression holds what is not arithmetic", part=ast.unparse(node))


def _bounded(number: Number) -> Number:
    if isinstance(number, int):
        if number.bit_length() > INTEGER_BITS_MAX:
            raise Invalid("the number is too large", bits_max=INTEGER_BITS_MAX)
    elif not math.isfinite(number):
        raise Invalid("the number is too large", value=str(number))
    return number
