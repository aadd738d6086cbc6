"""Episodes as one self-contained HTML page: each token coloured by advantage, by mask or by turn. Works offline."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping, Sequence

from turncredit.episodes.records import EpisodeRecord, GroupRecord
from turncredit.show.credits import Credits
from turncredit.show.terminal import facts, headline, number, turn_rewards

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2.5rem; } h3 { font-size: 1rem; margin-bottom: .3rem; }
.tokens { font: 13px/1.9 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere;
  border: 1px solid #ddd; border-radius: 4px; padding: .6rem; }
.t { border-radius: 2px; padding: 1px 0; } .obs { color: #666; } .prompt { color: #999; }
.turn { color: #06c; font-weight: 600; margin-right: .5em; user-select: none; }
table { border-collapse: collapse; margin: .6rem 0; font-size: 13px; }
th, td { padding: .2rem .6rem; text-align: right; }
th { border-bottom: 1px solid #999; } td { border-bottom: 1px solid #eee; }
.bar { position: sticky; top: 0; background: #fff; padding: .5rem 0; border-bottom: 1px solid #ddd; }
label { margin-right: 1rem; } .note { color: #666; font-size: 13px; } .error { color: #b00; }
"""
_SCRIPT = """
const hues = [210, 40, 140, 300, 0, 180];
function colour(a) { // blue: reinforced, orange: discouraged, white: no credit
  const s = Math.min(1, Math.abs(a) / 2); return a >= 0 ? `rgba(40,110,220,${.65*s})` : `rgba(230,120,20,${.65*s})`; }
function paint() {
  const by = document.querySelector('input[name=by]:checked').value, name = document.getElementById('algorithm').value;
  document.querySelectorAll('.t').forEach(t => {
    const turn = +t.dataset.turn, sampled = t.classList.contains('s');
    let c = 'transparent', title = turn < 0 ? 'prompt' : `turn ${turn + 1}, ${sampled ? 'sampled' : 'observation'}`;
    if (by === 'turn' && turn >= 0) c = `hsla(${hues[turn % 6]},70%,60%,${sampled ? .45 : .15})`;
    if (by === 'mask') c = sampled ? 'rgba(30,160,80,.4)' : 'rgba(0,0,0,.05)';
    if (by === 'advantage' && sampled) {
      const found = (CREDITS[t.dataset.episode][name] || [])[turn];
      if (found !== undefined) { c = colour(found); title += `, credit ${found.toFixed(2)}`; } }
    if (t.dataset.p) title += `, log-prob ${t.dataset.p}`;
    t.style.background = c; t.title = title; }); }
document.querySelectorAll('input[name=by], #algorithm').forEach(e => e.addEventListener('change', paint)); paint();
"""


def page(title: str, records: Sequence[tuple[GroupRecord, Mapping[str, Credits | None]]], selected: str) -> str:
    """The page.

    Args:
        title: of the page, e.g. the run.
        records: groups with the credits of their turns under each algorithm (``show.credits.all_credits``).
        selected: the algorithm whose credits are shown first.
    """
    algorithms = list(dict.fromkeys(name for _, credits in records for name in credits))
    all_credits: list[dict[str, Sequence[float]]] = []
    sections: list[str] = []
    for record, credits in records:
        sections.append(f"<h2>{text(headline(record))}</h2>")
        sections += [f"<div>{text(line)}</div>" for line in facts(record)]
        sections.append("<details><summary>prompt</summary>"
                        f'<div class="tokens prompt">{text(record.prompt)}</div></details>')
        for leaf, episode in enumerate(record.episodes):
            if len(record.episodes) > 1:
                sections.append(f"<h3>episode {leaf + 1} of {len(record.episodes)}</h3>")
            own = {name: None if found is None else found[leaf] for name, found in credits.items()}
            sections.append(_episode(episode, own, len(all_credits)))
            all_credits.append({name: values for name, values in own.items() if values is not None})
    options = "".join(f"<option{' selected' * (name == selected)}>{text(name)}</option>" for name in algorithms)
    return (f"<!doctype html><html lang=en><meta charset=utf-8><title>{text(title)}</title><style>{_STYLE}</style>"
            f"<h1>{text(title)}</h1><div class=bar>colour by "
            "<label><input type=radio name=by value=advantage checked> credit under "
            f"<select id=algorithm>{options}</select></label>"
            "<label><input type=radio name=by value=mask> loss mask</label>"
            "<label><input type=radio name=by value=turn> turn</label>"
            "<div class=note>Blue is reinforced, orange discouraged. Group baselines: advantage in the group. Critics: "
            "return at V = 0. Observations have no credit: the model did not write them.</div></div>"
            + "".join(sections) + f"<script>const CREDITS = {_json(all_credits)};{_SCRIPT}</script></html>\n")


def text(value: str) -> str:
    """Text as HTML; control characters are shown as their code and can do nothing.

    >>> text("<b>" + chr(13))
    '&lt;b&gt;␍'
    """
    visible = re.sub(r"[\x00-\x08\x0b-\x1f\x7f]", lambda found: chr(0x2400 + ord(found[0]) % 0x7f), value)
    return html.escape(re.sub(r"[\ud800-\udfff\u202a-\u202e\u2066-\u2069]", "\N{REPLACEMENT CHARACTER}", visible))


def _json(value: object) -> str:
    """JSON inside a script element, which no text in it can close."""
    return json.dumps(value).replace("<", "\\u003c")


def _episode(episode: EpisodeRecord, credits: Mapping[str, Sequence[float] | None], number_of_episode: int) -> str:
    pieces = []
    for k, turn in enumerate(episode.turns):
        pieces.append(f"<span class=turn>turn {k + 1}</span>")
        where = f"data-turn={k} data-episode={number_of_episode}"
        pieces += [f'<span class="t s" {where} data-p={logprob:g}>{text(token)}</span>' 
                   for token, logprob in zip(turn.tokens, turn.logprobs, strict=True)]
        if turn.observation:
            pieces.append(f'\n<span class="t obs" {where}>{text(turn.observation)}</span>')
        if turn.error:
            pieces.append(f" <span class=error>error: {text(turn.error)}</span>")
        pieces.append("\n")
    measured = ", ".join(f"{text(name)} {value:g}" for name, value in {**episode.metrics, **episode.components}.items())
    return (f"<div class=tokens>{''.join(pieces)}</div><div class=note>stop: {text(episode.stop)}; {measured}</div>"
            + _table(episode, credits))


def _table(episode: EpisodeRecord, credits: Mapping[str, Sequence[float] | None]) -> str:
    rewards = turn_rewards(episode)
    head = ["turn", "tokens", *(f"R {content}" for content in rewards), *credits]
    rows = []
    for k, turn in enumerate(episode.turns):
        cells = [str(k + 1), str(len(turn.tokens)), *(number(column[k]) for column in rewards.values()),
                 *("—" if column is None else number(column[k]) for column in credits.values())]
        rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    return ("<table><tr>" + "".join(f"<th>{text(name)}</th>" for name in head) + "</tr>" + "".join(rows) + "</table>")
