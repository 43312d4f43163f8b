"""Reading `repertory.toml`: values that are right, or everything that is wrong with them, each with its place.

    read_configuration(text, "repertory.toml") -> ConfigurationFile

The reader walks the types of `tables.py` beside what `tomllib` has read, and goes on behind each fault, so that one run
shows all of them. A fault says what was expected, and repeats no text that was found: it may be a secret in the wrong
place.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from datetime import date, time
from functools import cache
from itertools import islice
from typing import Protocol, TypeAlias, cast

import msgspec.inspect as kinds
from msgspec import Struct
from msgspec.structs import replace

from repertory.errors import Invalid
from repertory.service.configuration.decisions.checks import faults_between_keys, near_name
from repertory.service.configuration.decisions.tables import Configuration
from repertory.service.configuration.decisions.toml_positions import (
    KeyPath,
    TextPosition,
    TomlPositions,
    dotted,
    positions_in,
)

BYTES_MAX = 4 * 1024 * 1024
FAULTS_MAX = 50
"""The number of faults that are listed, and compared with similar words; the rest is counted."""
_END = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")
"""The end of an error message of `tomllib`, with the position where it stopped."""
_WRONG = object()
"""The stand-in for a value with a fault."""

Kind: TypeAlias = kinds.Type


class ConfigurationFault(Struct, frozen=True, order=True):
    """One fault of a configuration file, with its position (lines and columns count from 1)."""

    file: str
    line: int
    column: int
    key: str
    """The dotted key, as in the file; empty where the text is no TOML."""
    text: str
    """The value that was expected, and perhaps the key that was meant."""

    def __str__(self) -> str:
        """The fault on one line, as compilers write it: `FILE:LINE:COLUMN: KEY: TEXT`."""
        return f"{self.file}:{self.line}:{self.column}: {f'{self.key}: ' if self.key else ''}{self.text}"


class WrongConfiguration(Invalid):
    """The configuration cannot be used. `faults` has what is wrong in the order of the file, the first `FAULTS_MAX`."""

    def __init__(self, faults: Iterable[ConfigurationFault]) -> None:
        every = sorted(set(faults))
        self.faults: Sequence[ConfigurationFault] = every[:FAULTS_MAX]
        more = [f"and {len(every) - FAULTS_MAX:,} more at least"] if len(every) > FAULTS_MAX else []
        super().__init__("\n".join([*map(str, self.faults), *more]))


class ConfigurationFile(Struct, frozen=True, kw_only=True):
    """A configuration, with the positions of its keys in the text."""

    name: str
    """The file's path as it was given, which its faults begin with."""
    values: Configuration
    positions: TomlPositions

    def with_workers(self, workers: int) -> ConfigurationFile:
        """The configuration with another number of workers. Errors: `WrongConfiguration` for keys that do not fit."""
        values = replace(self.values, service=replace(self.values.service, workers=workers))
        if faults := [self.fault(path, text) for path, text in faults_between_keys(values)]:
            raise WrongConfiguration(faults)
        return replace(self, values=values)

    def fault(self, path: KeyPath, text: str) -> ConfigurationFault:
        """The fault of a key whose value has failed in use."""
        return _fault(self.name, self.positions, path, text)


def read_configuration(text: str, name: str) -> ConfigurationFile:
    """The values of a text. `name`: of its file, for faults. Errors: `WrongConfiguration` with every fault of syntax,
    or, where there is none, of keys, types, bounds, and keys that do not fit together.
    """
    positions = positions_in(text)
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise WrongConfiguration([_syntax_fault(name, positions, str(error), text)]) from None
    except RecursionError:
        raise WrongConfiguration(
            [_fault(name, positions, (), "arrays and tables are too deep in each other")]
        ) from None
    except ValueError:  # Python reads no integer of more than 4,300 digits.
        raise WrongConfiguration([_fault(name, positions, (), "a number has too many digits")]) from None
    reader = _Reader()
    values = reader.read(_kind_of_file(), found, ())
    faults = reader.faults
    if values is not _WRONG:
        between = islice(faults_between_keys(cast("Configuration", values)), FAULTS_MAX + 1)
        wrong = {each[:length] for each, _ in faults for length in (1, 2)}
        faults = [*faults, *(each for each in between if _stands_alone(each[0], wrong))]
    if faults:
        raise WrongConfiguration(_fault(name, positions, path, text) for path, text in faults)
    return ConfigurationFile(name=name, values=cast("Configuration", values), positions=positions)


def _fault(name: str, positions: TomlPositions, path: KeyPath, text: str) -> ConfigurationFault:
    line, column = positions.near(path)
    return ConfigurationFault(name, line, column, dotted(path), text)


def _stands_alone(path: KeyPath, wrong: Set[KeyPath]) -> bool:
    """True if a fault between keys is more than the consequence of another fault: a wrong key counts as left out.

    `wrong`: the tables with a fault.
    """
    table = path[:2] if path[0] in _NAMED else path[:1]
    return table not in wrong and not (path[0] == "agents" and wrong & _REFERRED_TO)


_NAMED = frozenset(("agents", "memory", "mcp"))
_REFERRED_TO = frozenset({("memory",), ("mcp",)})


def _syntax_fault(name: str, positions: TomlPositions, message: str, text: str) -> ConfigurationFault:
    """The fault of syntax: the scanner's where it met one too, since it knows the start of what is not closed."""
    where = _END.search(message)
    at = TextPosition(int(where[1]), int(where[2])) if where is not None and where[1] else None
    if positions.fault is not None and (at is None or positions.fault[0] <= at):
        (line, column), what = positions.fault
    else:
        line, column = at or TextPosition(text.count("\n") + 1, 1)
        what = _END.sub("", message)
    return ConfigurationFault(name, line, column, "", f"no TOML: {what[:1].lower()}{what[1:]}")


@cache
def _kind_of_file() -> Kind:
    return kinds.type_info(Configuration)


@cache
def _tables_of_keys() -> Mapping[str, Sequence[str]]:
    """The tables in which a key may stand, by key."""
    found: dict[str, list[str]] = {}
    for table, each in every_table():
        for each_field in each.fields:
            found.setdefault(each_field.name, []).append(table)
    return found


def every_table() -> Iterator[tuple[str, kinds.StructType]]:
    """Every table with its header, such as `agents.NAME`, from the top down; tables of kinds one after the other."""
    yield from _tables_within(_kind_of_file(), "")


def _tables_within(kind: Kind, header: str) -> Iterator[tuple[str, kinds.StructType]]:
    match bare_kind(kind):
        case kinds.StructType() as table:
            yield header, table
            for each in table.fields:
                yield from _tables_within(each.type, f"{header}.{each.name}" if header else each.name)
        case kinds.UnionType(types=options):
            for option in options:
                yield from _tables_within(option, header)
        case kinds.DictType(value_type=inner):
            yield from _tables_within(inner, f"{header}.NAME")
        case _:
            return


def bare_kind(kind: Kind) -> Kind:
    """The kind without what is said about it, and without None, which TOML does not have."""
    while isinstance(kind, kinds.Metadata):
        kind = kind.type
    if isinstance(kind, kinds.UnionType):
        options = tuple(each for each in kind.types if not isinstance(each, kinds.NoneType))
        return bare_kind(options[0]) if len(options) == 1 else kinds.UnionType(options)
    return kind


class _Reader:
    """The reader that makes values of `tomllib`'s output, and collects faults."""

    def __init__(self) -> None:
        self.faults: list[tuple[KeyPath, str]] = []

    def read(self, kind: Kind, raw: object, path: KeyPath) -> object:
        match bare_kind(kind):
            case kinds.UnionType(types=options):
                return self._one_of(kind, options, raw, path)
            case kinds.StructType() as table if isinstance(raw, dict):
                return self._table(table, cast("dict[str, object]", raw), path)
            case kinds.DataclassType() as source if isinstance(raw, dict):
                return self._secret(source, cast("dict[str, object]", raw), path)
            case kinds.DictType(value_type=inner) as named if isinstance(raw, dict):
                return self._named(named, inner, cast("dict[str, object]", raw), path)
            case kinds.VarTupleType(item_type=inner) if isinstance(raw, list):
                items = cast("list[object]", raw)
                read = [self.read(inner, item, (*path, number)) for number, item in enumerate(items)]
                return _WRONG if _WRONG in read else tuple(read)
            case kinds.CustomType():
                return raw
            case kinds.FloatType() if type(raw) is int and _fits(bare_kind(kind), raw):
                return float(raw)
            case bare if _fits(bare, raw):
                return raw
            case _:
                return self._refuse(kind, raw, path)

    def _refuse(self, kind: Kind, raw: object, path: KeyPath) -> object:
        if isinstance(raw, str) and _takes_secrets(kind):
            self.faults.append((path, f"a secret does not stand here in plain text: write {_SECRET_FORMS}"))
            return _WRONG
        got = "" if _takes_secrets(kind) else f", got {_quoted(raw)}"
        near = self._meant(raw, _words(kind))
        self.faults.append((path, f"expected {expected(kind)}{got}{near}"))
        return _WRONG

    def _one_of(self, kind: Kind, options: Sequence[Kind], raw: object, path: KeyPath) -> object:
        tables = [each for each in options if isinstance(each, kinds.StructType)]
        if isinstance(raw, dict) and len(tables) > 1:
            return self._tagged(tables, cast("dict[str, object]", raw), path)
        is_table = isinstance(raw, dict)
        for option in options:
            bare = bare_kind(option)
            if isinstance(bare, kinds.StructType | kinds.DataclassType) if is_table else _fits(bare, raw):
                return self.read(option, cast("object", raw), path)
        return self._refuse(kind, cast("object", raw), path)

    def _tagged(self, tables: Sequence[kinds.StructType], raw: dict[str, object], path: KeyPath) -> object:
        tags = [str(each.tag) for each in tables]
        given = raw.get("kind")
        if "kind" not in raw:
            self.faults.append((path, f"the key `kind` is missing: one of {_listed(tags)}"))
        elif given not in tags:
            self.faults.append(((*path, "kind"), f"expected one of {_listed(tags)}{self._meant(given, tags)}"))
        else:
            rest = {key: value for key, value in raw.items() if key != "kind"}
            return self._table(tables[tags.index(str(given))], rest, path)
        return _WRONG

    def _table(self, table: kinds.StructType, raw: dict[str, object], path: KeyPath) -> object:
        known = {each.name: each for each in table.fields}
        values: dict[str, object] = {}
        for key, value in raw.items():
            if key in known:
                values[key] = self.read(known[key].type, value, (*path, key))
            else:
                self.faults.append(((*path, key), f"there is no such key{self._elsewhere(key, known, path)}"))
        for key, each in known.items():
            if each.required and key not in raw:
                self.faults.append((path, f"the key `{key}` is missing: {expected(each.type)}"))
        right = {key: value for key, value in values.items() if value is not _WRONG}
        return table.cls(**right) if all(key in right for key, each in known.items() if each.required) else _WRONG

    def _meant(self, given: object, known: Iterable[str]) -> str:
        near = near_name(given, known) if isinstance(given, str) and len(self.faults) < FAULTS_MAX else None
        return f'; did you mean "{near}"?' if near else ""

    def _elsewhere(self, key: str, known: Mapping[str, object], path: KeyPath) -> str:
        """The key that was probably meant: one of this table that is much like it, or this key in another table."""
        if len(self.faults) >= FAULTS_MAX:
            return ""
        if near := near_name(key, known):
            return f"; did you mean `{near}`?"
        there = [table for table in _tables_of_keys().get(key, ()) if table]
        if there:
            return f"; it is one of [{there[0]}]"
        return f"; there are {', '.join(sorted(known))}" if known and not path else ""

    def _secret(self, source: kinds.DataclassType, raw: dict[str, object], path: KeyPath) -> object:
        given = {key: value for key, value in raw.items() if isinstance(value, str) and value}
        if len(raw) != 1 or given.keys() != raw.keys() or not raw.keys() <= {each.name for each in source.fields}:
            self.faults.append((path, f"a secret is exactly one of {_SECRET_FORMS}"))
            return _WRONG
        return source.cls(**given)

    def _named(self, kind: kinds.DictType, inner: Kind, raw: dict[str, object], path: KeyPath) -> object:
        if kind.min_length and len(raw) < kind.min_length:
            self.faults.append((path, f"expected {expected(kind)}"))
        read = {key: self.read(inner, value, (*path, key)) for key, value in raw.items()}
        return {key: value for key, value in read.items() if value is not _WRONG}


_SECRET_FORMS = '`{ env = "NAME" }`, `{ file = "PATH" }` or, if it must stand here, `{ plain = "..." }`'


def _fits(kind: Kind, raw: object) -> bool:
    """True if a value that holds no others is of the kind, and within its bounds."""
    match kind:
        case kinds.BoolType():
            return isinstance(raw, bool)
        case kinds.LiteralType(values=values):
            return isinstance(raw, str) and raw in values
        case kinds.StrType(min_length=least, pattern=pattern):
            long_enough = isinstance(raw, str) and len(raw) >= (least or 0)
            return long_enough and (pattern is None or re.search(pattern, cast("str", raw)) is not None)
        case kinds.IntType() | kinds.FloatType():
            number = isinstance(raw, int) if isinstance(kind, kinds.IntType) else isinstance(raw, int | float)
            return number and not isinstance(raw, bool) and _is_within(kind, cast("float", raw))
        case _:
            return False


def _is_within(kind: kinds.IntType | kinds.FloatType, number: float) -> bool:
    return abs(number) <= _NUMBER_MAX and (  # So neither NaN, nor an integer of any length.
        (kind.ge is None or number >= kind.ge)
        and (kind.gt is None or number > kind.gt)
        and (kind.le is None or number <= kind.le)
        and (kind.lt is None or number < kind.lt)
    )


_NUMBER_MAX = 1e300


class _Described(Protocol):
    extra_json_schema: Mapping[str, object] | None


def expected(kind: Kind) -> str:
    """The values that a key takes, in words: `a whole number from 0 to 65535`."""
    if isinstance(kind, kinds.Metadata):
        schema = cast("_Described", kind).extra_json_schema or {}
        if "title" in schema:
            return f"`{schema['title']}`"
        examples = cast("Sequence[str]", schema.get("examples", ()))
        return expected(kind.type) + (f', such as "{examples[0]}"' if examples else "")
    match kind:
        case kinds.UnionType(types=options):
            wanted = [each for each in options if not isinstance(each, kinds.NoneType)]
            return " or ".join(dict.fromkeys(map(expected, wanted)))
        case kinds.StrType():
            return "text"
        case kinds.BoolType():
            return "true or false"
        case kinds.LiteralType(values=values):
            return f"one of {_listed(cast('Sequence[str]', values))}"
        case kinds.IntType() | kinds.FloatType() as number:
            return ("a whole number" if isinstance(number, kinds.IntType) else "a number") + _bounds(number)
        case kinds.VarTupleType(item_type=item):
            return f"an array of {expected(item)}"
        case kinds.DictType(value_type=inner, min_length=least):
            what = "a table" if isinstance(inner, kinds.CustomType) else f"a table of names with {expected(inner)} each"
            return f"{what}, one at least" if least else what
        case kinds.DataclassType():
            return '`{ env = "NAME" }` or `{ file = "PATH" }`'
        case _:
            return "a table"


def _bounds(kind: kinds.IntType | kinds.FloatType) -> str:
    if kind.ge is not None and kind.le is not None:
        return f" from {kind.ge} to {kind.le}"
    if kind.gt is not None:
        return f" above {kind.gt}"
    return f", {kind.ge} or more" if kind.ge is not None else ""


def _listed(words: Iterable[str]) -> str:
    return ", ".join(f'"{word}"' for word in words)


def _words(kind: Kind) -> Sequence[str]:
    match bare_kind(kind):
        case kinds.LiteralType(values=values):
            return cast("Sequence[str]", values)
        case _:
            return ()


def _takes_secrets(kind: Kind) -> bool:
    match bare_kind(kind):
        case kinds.DataclassType():
            return True
        case kinds.UnionType(types=options):
            return any(map(_takes_secrets, options))
        case _:
            return False


def _quoted(raw: object) -> str:
    match raw:
        case bool():
            return str(raw).lower()
        case int() | float():
            return str(raw) if not isinstance(raw, int) or raw.bit_length() < 100 else "a huge number"
        case str():
            return "text" if raw else "an empty text"
        case list():
            return "an array"
        case dict():
            return "a table"
        case date() | time():
            return "a date or time"
        case _:
            return type(raw).__name__
