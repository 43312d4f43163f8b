"""Results of a replay as one page of HTML: a summary, and every turn with both answers side by side.

The page needs nothing else: no network, no font, no library. Everything that a session or a model said is escaped, and
the page's own policy allows no script but the one that it was written with (by its SHA-256), no image and no
connection; so what a model says cannot become more than text, even if escaping failed.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from typing import Final

from repertory.core.pictures.svg import lasted
from repertory.evaluation.decisions.results import ReplayedTurn, Score, VariantSummary, figure, summaries
from repertory.evaluation.decisions.turns import TurnOutcome

_CONTROL: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)
"""The characters that HTML forbids, and those that turn the direction of the text around them."""

_STYLE: Final = """
:root{color-scheme:light dark;--paper:#fff;--ink:#1c2024;--mute:#5c616b;--line:#d5d8dd;--box:#f6f7f9;--main:#0b60bd;
--good:#166c43;--bad:#ad1f14}
@media screen and (prefers-color-scheme:dark){:root{--paper:#15171b;--ink:#eceef1;--mute:#a7acb6;--line:#3a3f47;
--box:#1f2329;--main:#76bbff;--good:#52c78f;--bad:#ff9086}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1200px;padding:24px;background:var(--paper);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,'Noto Sans',sans-serif}
h1{font-size:22px;margin:0 0 4px}h2{font-size:15px;margin:0}h3{font-size:12px;margin:0 0 6px;color:var(--mute);
font-weight:600;letter-spacing:.02em;overflow-wrap:anywhere}
p{margin:4px 0 16px;color:var(--mute)}
.wide{overflow-x:auto}
table{border-collapse:collapse;margin:0 0 24px;min-width:100%}
th,td{padding:6px 12px;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}
th:first-child,td:first-child{text-align:left}th{font-weight:600;color:var(--mute);font-size:13px}
section{border:1px solid var(--line);border-radius:8px;margin:0 0 18px;overflow:hidden;scroll-margin-top:12px}
section:focus-visible,a:focus-visible{outline:3px solid var(--main);outline-offset:2px}
section>header{padding:10px 14px;background:var(--box);border-bottom:1px solid var(--line)}
pre{margin:0;white-space:pre-wrap;overflow-wrap:anywhere;font:inherit}
.sides{display:grid;grid-template-columns:repeat(auto-fit,minmax(280px,1fr))}
.side{padding:12px 14px;border-left:1px solid var(--line);min-width:0}.side:first-child{border-left:0}
.facts{margin-top:10px;color:var(--mute);font-size:13px}
.tool{font:12px/1.5 ui-monospace,SFMono-Regular,Menlo,monospace;color:var(--mute);overflow-wrap:anywhere}
.same{color:var(--good)}.error{color:var(--bad)}a{color:var(--main)}
kbd{border:1px solid var(--line);border-radius:4px;padding:0 5px;font:12px ui-monospace,monospace}
@media(max-width:640px){.side{border-left:0;border-top:1px solid var(--line)}.side:first-child{border-top:0}}
@media print{section{break-inside:avoid}.keys{display:none}}
"""
_SCRIPT: Final = """
document.addEventListener('keydown',function(event){
if(event.ctrlKey||event.metaKey||event.altKey){return}
var step={j:1,k:-1}[event.key];
if(!step){return}
var all=Array.from(document.querySelectorAll('section'));
var at=all.indexOf(document.activeElement);
var next=all[at<0?(step>0?0:all.length-1):at+step];
if(next){event.preventDefault();next.focus();next.scrollIntoView({block:'start'})}
});
"""
_POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; script-src 'sha256-"
    f"{base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()}'"
)


def replay_page(rows: Sequence[ReplayedTurn], title: str) -> str:
    """The whole document. Turns are in the order of the conversation, each with its recorded answer and the answer of
    every variant. The keys J and K go from turn to turn.
    """
    turns: dict[tuple[str, str, int], list[ReplayedTurn]] = {}
    for row in rows:
        turns.setdefault((row.session, row.agent, row.position), []).append(row)
    sections = "".join(_turn(number, members) for number, members in enumerate(turns.values(), 1))
    sums = summaries(rows)
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f"<title>{_e(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{_e(title)}</h1>\n"
        f'<p>{len(turns):,} turns, {len(sums):,} variants. <span class="keys">Go from turn to turn with <kbd>J</kbd> '
        f"and <kbd>K</kbd>, or with Tab.</span></p>\n{_table(sums)}\n{sections}</main>\n<script>{_SCRIPT}</script>\n"
        "</body>\n</html>\n"
    )


def _e(text: str) -> str:
    escaped = _CONTROL.sub("\ufffd", text)
    for sign, name in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;"), ("'", "&#39;")):
        escaped = escaped.replace(sign, name)
    return escaped


def _table(sums: Sequence[VariantSummary]) -> str:
    scorers = list(dict.fromkeys(scorer for each in sums for scorer in each.scores))
    heads = ["Variant", "Turns", "Errors", "Same text", "Tokens", "Cost", "Time", *scorers]
    head = "".join(f'<th scope="col">{_e(name)}</th>' for name in heads)
    lines: list[str] = []
    if sums:
        first = sums[0]
        cost, lasted = figure(first.recorded_cost, 4), _time(first.recorded_s)
        counts = [f"{first.turns:,}", "", "", f"{first.recorded_tokens:,}"]
        lines.append(_cells(["recorded", *counts, cost, lasted, *("" for _ in scorers)]))
    for each in sums:
        means = [figure(each.scores.get(scorer), 3) for scorer in scorers]
        counts = [f"{each.turns:,}", f"{each.errors:,}", f"{each.same:,}", f"{each.tokens:,}"]
        lines.append(_cells([each.variant, *counts, figure(each.cost, 4), _time(each.lasted_s), *means]))
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="Summary"><table>\n<thead><tr>{head}</tr></thead>\n'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else lasted(seconds * 1000)


def _cells(cells: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<td>{_e(cell)}</td>' for cell in cells)}</tr>\n"


def _turn(number: int, rows: Sequence[ReplayedTurn]) -> str:
    first = rows[0]
    sides = [_side("recorded", first.recorded, "<p>This turn has no recorded answer.</p>", "")]
    sides += [_side(row.variant, row.replayed, _missing(row), _verdict(row)) for row in rows]
    return (
        f'<section id="turn-{number}" tabindex="0" aria-label="Turn {first.turn}">\n<header><h2>Turn {first.turn} '
        f'<a href="#turn-{number}">#{first.position}</a> of {_e(first.session)}/{_e(first.agent)}</h2>'
        f'<pre>{_e(first.prompt)}</pre></header>\n<div class="sides">{"".join(sides)}</div>\n</section>\n'
    )


def _missing(row: ReplayedTurn) -> str:
    return f'<p class="error">No answer: {_e(row.error or "the turn ended without one")}</p>'


def _verdict(row: ReplayedTurn) -> str:
    parts = ['<span class="same">same text</span>'] if row.same else []
    parts += [f'<span class="error">{_e(row.error)}</span>'] if row.error and row.replayed is not None else []
    parts += [f"stopped: {_e(row.stop_reason)}"] if row.stop_reason not in (None, "end_turn") else []
    parts += [f"not recorded: {_e(', '.join(row.unmatched))}"] if row.unmatched else []
    parts += [f"{_e(name)}: {_e(_score(score))}" for name, score in row.scores.items()]
    parts += [f'<span class="error">{_e(name)} failed: {_e(why)}</span>' for name, why in row.score_errors.items()]
    return "".join(f"<div>{part}</div>" for part in parts)


def _score(score: Score) -> str:
    return f"{score:.4g}" if isinstance(score, float) else str(score)


def _side(name: str, outcome: TurnOutcome | None, missing: str, verdict: str) -> str:
    if outcome is None:
        return f'<div class="side"><h3>{_e(name)}</h3>{missing}<div class="facts">{verdict}</div></div>'
    tools = "".join(f'<div class="tool">{_e(tool)}</div>' for tool in outcome.tools)
    facts: list[str] = []
    if outcome.input_tokens is not None or outcome.output_tokens is not None:
        facts.append(f"{outcome.input_tokens or 0:,} in, {outcome.output_tokens or 0:,} out")
    facts += [f"cost {figure(outcome.cost, 6)}"] if outcome.cost is not None else []
    facts += [lasted(outcome.lasted_s * 1000)] if outcome.lasted_s is not None else []
    facts += [f"model {outcome.model_ms:,.0f} ms"] if outcome.model_ms is not None else []
    return (
        f'<div class="side"><h3>{_e(name)}</h3>{tools}<pre>{_e(outcome.text)}</pre>'
        f'<div class="facts">{_e(" · ".join(facts))}{verdict}</div></div>'
    )
