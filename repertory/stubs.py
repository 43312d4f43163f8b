"""Stubs that say where names are made: type checkers read them, and so do the modules whose names they are."""

from __future__ import annotations


def homes_of(stub: bytes) -> dict[str, str]:
    """The names of a stub, each with its place: `module:attribute`."""
    homes, module = dict[str, str](), ""
    for words in map(str.split, stub.decode().splitlines()):
        if words[:1] == ["from"]:
            module = words[1]
        if words[-2:-1] == ["as"]:
            homes[words[-1].rstrip(",")] = f"{module}:{words[-3]}"
    return homes
