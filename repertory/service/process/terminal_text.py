"""Text for terminals: without control characters, and errors as commands print them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from difflib import get_close_matches

from repertory.core.plural import counted

_HIDDEN = (
    *range(0x20),
    *range(0x7F, 0xA0),
    0x061C,  # Text direction, single characters and ranges.
    *range(0x200E, 0x2010),
    *range(0x2028, 0x202F),  # Also the line and paragraph separators.
    *range(0x2066, 0x206A),
    0x200B,  # Invisible characters; joiners stay, since some scripts need them.
    *range(0x2060, 0x2065),
    0xFEFF,
    *range(0xFFF9, 0xFFFC),
    *range(0xE0000, 0xE0080),
)


def _escape(code: int) -> str:
    return chr(code).encode("ascii", "backslashreplace").decode()


_ESCAPES = {code: _escape(code) if code > 0x7F else f"\\x{code:02x}" for code in _HIDDEN if chr(code) not in "\n\t"}
_IN_JSON = {code: json.dumps(chr(code))[1:-1] for code in _ESCAPES}


def harmless(text: str) -> str:
    """The text with every control and invisible character spelled out, except line breaks and tabs."""
    return text.translate(_ESCAPES)


def harmless_json(text: str) -> str:
    """`harmless` for JSON, whose value stays the same."""
    return text.translate(_IN_JSON)


def error_text(error: Exception) -> str:
    """An error as a command prints it: one line; for a configuration one for each fault as well."""
    from repertory.service.configuration.decisions.reading import WrongConfiguration  # loaded when something has failed

    if isinstance(error, WrongConfiguration):
        return "\n".join(
            [*map(str, error.faults), f"repertory: {counted(len(error.faults), 'fault')} in the configuration"]
        )
    # The advice of the API is none for a command, which has its own.
    text = str(error).replace(": try again later, or take it over with takeover=True", "") or type(error).__name__
    return f"repertory: {' '.join(text.split())}"


def did_you_mean(word: str, known: Iterable[str], mark: str = "") -> str:
    """A sentence, with a space before it, that names the known words which are most like this one; empty if none is."""
    near = get_close_matches(word, list(dict.fromkeys(known)), n=2, cutoff=0.55)
    return f" Did you mean {' or '.join(f'{mark}{each}' for each in near)}?" if near else ""
