"""Reading `repertory.toml`: values that are right, or everything that is wrong with them, each with its key.

    read_configuration(text, "repertory.toml") -> ConfigurationFile

`tomllib` reads the text and `msgspec` checks each value. The reader here only walks the tables, so that one run shows
the faults of all keys. A fault says what was expected, and repeats no text that was found: it may be a secret in the
wrong place.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from functools import cache
from itertools import islice
from types import NoneType, UnionType
from typing import Annotated, Protocol, TypeAlias, Union, cast, get_args, get_origin

import msgspec
import msgspec.inspect as kinds
from msgspec import Struct
from msgspec.structs import fields, replace

from repertory.errors import Invalid
from repertory.service.configuration.decisions.checks import Fault, KeyPath, faults_between_keys, near_name
from repertory.service.configuration.decisions.tables import Configuration, SecretSource

BYTES_MAX = 4 * 1024 * 1024
FAULTS_MAX = 50
"""The number of faults that are listed, and compared with similar words; the rest is counted."""
_WRONG = object()
"""The stand-in for a value with a fault."""
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")

Kind: TypeAlias = kinds.Type


class ConfigurationFault(Struct, frozen=True):
    """One fault of a configuration file."""

    file: str
    key: str
    """The dotted key, as in the file; empty where the text is no TOML."""
    text: str
    """The value that was expected, and perhaps the key that was meant."""

    def __str__(self) -> str:
        """The fault on one line: `FILE: KEY: TEXT`."""
        return f"{self.file}: {f'{self.key}: ' if self.key else ''}{self.text}"


class WrongConfiguration(Invalid):
    """The configuration cannot be used. `faults` has what is wrong in the order of the file, the first `FAULTS_MAX`."""

    def __init__(self, faults: Iterable[ConfigurationFault]) -> None:
        every = list(dict.fromkeys(faults))
        self.faults: Sequence[ConfigurationFault] = every[:FAULTS_MAX]
        more = [f"and {len(every) - FAULTS_MAX:,} more at least"] if len(every) > FAULTS_MAX else []
        super().__init__("\n".join([*map(str, self.faults), *more]))


class ConfigurationFile(Struct, frozen=True, kw_only=True):
    """A configuration, and the file that has it."""

    name: str
    """The file's path as it was given, which its faults begin with."""
    values: Configuration

    def with_workers(self, workers: int) -> ConfigurationFile:
        """The configuration with another number of workers. Errors: `WrongConfiguration` for keys that do not fit."""
        values = replace(self.values, service=replace(self.values.service, workers=workers))
        if faults := [self.fault(path, text) for path, text in faults_between_keys(values)]:
            raise WrongConfiguration(faults)
        return replace(self, values=values)

    def fault(self, path: KeyPath, text: str) -> ConfigurationFault:
        """The fault of a key whose value has failed in use."""
        return ConfigurationFault(self.name, dotted(path), text)


def read_configuration(text: str, name: str) -> ConfigurationFile:
    """The values of a text. `name`: of its file, for faults. Errors: `WrongConfiguration` with the first fault of
    syntax, or, where there is none, every fault of keys, types, bounds, and keys that do not fit together.
    """
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise WrongConfiguration([ConfigurationFault(name, "", f"no TOML: {error}")]) from None
    except (RecursionError, ValueError):  # Python reads no integer of more than 4,300 digits.
        fault = ConfigurationFault(name, "", "a table in it is too deep, or a number in it too long")
        raise WrongConfiguration([fault]) from None
    reader = _Reader()
    values = reader.read(Configuration, found, ())
    faults = reader.faults
    if values is not _WRONG:
        between = islice(faults_between_keys(cast("Configuration", values)), FAULTS_MAX + 1)
        wrong = {each[:length] for each, _ in faults for length in (1, 2)}
        faults = [*faults, *(each for each in between if _stands_alone(each[0], wrong))]
    if faults:
        raise WrongConfiguration(ConfigurationFault(name, dotted(path), text) for path, text in faults)
    return ConfigurationFile(name=name, values=cast("Configuration", values))


def dotted(path: KeyPath) -> str:
    """The path as it is written: `agents.support.tools[1]`, with quotes around keys that need them."""
    text = ""
    for key in path:
        if isinstance(key, int):
            text += f"[{key}]"
        else:
            bare = key if _BARE_KEY.fullmatch(key) else f'"{key}"'
            text += f".{bare}" if text else bare
    return text


def _stands_alone(path: KeyPath, wrong: Set[KeyPath]) -> bool:
    """True if a fault between keys is more than the consequence of another fault: a wrong key counts as left out.

    `wrong`: the tables with a fault.
    """
    table = path[:2] if path[0] in _NAMED else path[:1]
    return table not in wrong and not (path[0] == "agents" and wrong & _REFERRED_TO)


_NAMED = frozenset(("agents", "memory", "mcp"))
_REFERRED_TO = frozenset({("memory",), ("mcp",)})


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
    yield from _tables_within(kinds.type_info(Configuration), "")


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
        self.faults: list[Fault] = []

    def read(self, hint: object, raw: object, path: KeyPath) -> object:
        options = _options(hint)
        if isinstance(raw, dict):
            table = cast("dict[str, object]", raw)
            structs = [each for each in options if isinstance(each, type) and issubclass(each, Struct)]
            if len(structs) > 1:
                return self._tagged(structs, table, path)
            if structs:
                return self._table(structs[0], table, path)
            if SecretSource in options:
                return self._secret(table, path)
            for named in options:
                if table and get_origin(named) is dict:
                    read = {key: self.read(get_args(named)[1], value, (*path, key)) for key, value in table.items()}
                    return {key: value for key, value in read.items() if value is not _WRONG}
        for array in options:
            if isinstance(raw, list) and get_origin(array) is tuple:
                items = enumerate(cast("list[object]", raw))
                read_items = [self.read(get_args(array)[0], item, (*path, number)) for number, item in items]
                return _WRONG if _WRONG in read_items else tuple(read_items)
        if isinstance(raw, int | float) and not abs(raw) <= _NUMBER_MAX:  # So neither NaN, nor an endless time.
            return self._refuse(hint, raw, path)
        try:
            return msgspec.convert(cast("object", raw), type=hint)
        except msgspec.ValidationError:
            return self._refuse(hint, cast("object", raw), path)

    def _refuse(self, hint: object, raw: object, path: KeyPath) -> object:
        kind = kinds.type_info(hint)
        if isinstance(raw, str) and SecretSource in _options(hint):
            self.faults.append((path, f"a secret does not stand here in plain text: write {_SECRET_FORMS}"))
            return _WRONG
        near = self._meant(raw, _words(kind))
        self.faults.append((path, f"expected {expected(kind)}, got {_described(raw)}{near}"))
        return _WRONG

    def _tagged(self, tables: Sequence[type[Struct]], raw: dict[str, object], path: KeyPath) -> object:
        by_tag = {str(each.__struct_config__.tag): each for each in tables}
        given = raw.get("kind")
        if "kind" not in raw:
            self.faults.append((path, f"the key `kind` is missing: one of {_listed(by_tag)}"))
        elif str(given) not in by_tag:
            self.faults.append(((*path, "kind"), f"expected one of {_listed(by_tag)}{self._meant(given, by_tag)}"))
        else:
            rest = {key: value for key, value in raw.items() if key != "kind"}
            return self._table(by_tag[str(given)], rest, path)
        return _WRONG

    def _table(self, table: type[Struct], raw: dict[str, object], path: KeyPath) -> object:
        known = {each.name: each for each in fields(table)}
        values: dict[str, object] = {}
        for key, value in raw.items():
            if key in known:
                values[key] = self.read(known[key].type, value, (*path, key))
            else:
                self.faults.append(((*path, key), f"there is no such key{self._elsewhere(key, known, path)}"))
        for key, each in known.items():
            if each.required and key not in raw:
                self.faults.append((path, f"the key `{key}` is missing: {expected(kinds.type_info(each.type))}"))
        right = {key: value for key, value in values.items() if value is not _WRONG}
        return table(**right) if all(key in right for key, each in known.items() if each.required) else _WRONG

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

    def _secret(self, raw: dict[str, object], path: KeyPath) -> object:
        given = {key: value for key, value in raw.items() if isinstance(value, str) and value}
        if len(raw) == 1 and given.keys() == raw.keys() and raw.keys() <= {"env", "file", "plain"}:
            return SecretSource(**given)
        self.faults.append((path, f"a secret is exactly one of {_SECRET_FORMS}"))
        return _WRONG


_SECRET_FORMS = '`{ env = "NAME" }`, `{ file = "PATH" }` or, if it must stand here, `{ plain = "..." }`'
_NUMBER_MAX = 1e300


def _options(hint: object) -> Sequence[object]:
    """The types that a value may have, without what is said about them, and without None, which TOML does not have."""
    while get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    if get_origin(hint) in (Union, UnionType):
        return [each for option in get_args(hint) for each in _options(option) if each is not NoneType]
    return [hint]


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


def _described(raw: object) -> str:
    """A value in words that repeat no text."""
    if isinstance(raw, int | float):
        return "a huge number" if isinstance(raw, int) and raw.bit_length() >= 100 else str(raw).lower()
    if raw == "":
        return "an empty text"
    names: Mapping[type, str] = {str: "text", list: "an array", dict: "a table"}
    return names.get(type(raw), "a date or time")
