"""The page itself: what stands in it as text; charts, sorting and the replay are the scripts' part."""

import base64
import json
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from typing import Any

import yaml

from riskppo_jax.report.data import command, lane_label, over_limit, over_seeds, page_data, preset_differences
from riskppo_jax.report.replay import read_replays
from riskppo_jax.report.words import asked, gained, symbol, verdict
from riskppo_jax.runs import Lane, Run, best_t, by_name, first_of, groups, has_t
from riskppo_jax.writers import plain


def page(runs: Sequence[Run]) -> str:
    """The whole document."""
    flat = [(run, lane) for run in runs for lane in run.lanes]
    replays: dict[int, Any] = {}
    offset = 0
    for run in runs:
        replays |= {offset + lane: replay for lane, replay in read_replays(run.folder).items() if lane < len(run.lanes)}
        offset += len(run.lanes)
    title = _title(runs)
    body = [
        f"<header><h1>{escape(title)}</h1>{_lead(runs)}{_chips(flat)}</header><main>",
        _asked(runs),
        _met(flat, len(runs) > 1),
        _panels(flat, len(runs) > 1),
        _compare(runs, flat) if len(flat) > 1 else "",
        _table(flat, len(runs) > 1),
        _replay(bool(replays)),
        _settings(runs),
        _reproduce(runs),
        "</main><footer>Written by riskppo report. Nothing in this page is loaded from anywhere else.</footer>",
    ]
    scripts = "\n".join(_asset(name) for name in ("charts.js", "replay.js", "page.js"))
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<style>{_asset('page.css')}</style></head><body>{''.join(body)}{_without_script(runs)}"
        f"{_json('data', page_data(runs))}{_json('replays', replays)}<script>{scripts}</script></body></html>\n"
    )


def _title(runs: Sequence[Run]) -> str:
    tasks, algos = (list(dict.fromkeys(values)) for values in zip(*((run.env, run.algo) for run in runs), strict=True))
    few = lambda names: ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")  # noqa: E731
    return f"{few(tasks)}: {few(algos)}"


def _lead(runs: Sequence[Run]) -> str:
    lanes = sum(len(run.lanes) for run in runs)
    steps = sum(run.summary.get("env_steps", 0) * len(run.lanes) for run in runs)
    seconds = sum(run.summary.get("wall_seconds", 0) for run in runs)
    many = f"{len(runs)} run{'s' * (len(runs) > 1)}, {lanes} lanes, " if lanes > 1 else ""
    engines = ", ".join(dict.fromkeys(run.summary.get("engine", "?") for run in runs))
    return f'<p class="lead">{many}{steps:,} environment steps on {escape(engines)} in {seconds:,.0f} s</p>'


def _chips(flat: list[tuple[Run, Lane]]) -> str:
    marks = [verdict(c).mark for _, lane in flat for c in lane.found.get("constraints", [])]
    words = {"kept": "kept", "edge": "at the limit", "broken": "not kept"}
    chips = [f'<span class="chip {m}">{marks.count(m)} {w}</span>' for m, w in words.items() if m in marks]
    diverged = sum(bool(lane.found.get("diverged")) for _, lane in flat)
    chips += [f'<span class="chip broken">{diverged} diverged</span>'] if diverged else []
    unfinished = sum(not lane.found for _, lane in flat)
    chips += [f'<span class="chip edge">{unfinished} not finished yet</span>'] if unfinished else []
    label = f"<span class=chip>{len(marks)} constraint{'s' if len(marks) != 1 else ''}:</span>" if marks else ""
    return f'<div class="chips">{label}{"".join(chips)}</div>'


def _asked(runs: Sequence[Run]) -> str:
    seen, parts = set(), []
    for run in runs:
        lane = run.lanes[0].found
        whole = (run.config.get("scheme") or {}).get("risk_of") == "episode"
        objective = lane.get("objective", {}).get("risk") or run.config.get("objective") or {"name": "mean"}
        problem = asked(run.env, objective, lane.get("constraints"), whole)
        if problem not in seen:
            seen.add(problem)
            parts.append(f'<p>{problem[0]}</p><p class="maths">{problem[1]}</p>')
    swept = {name for run in runs for lane in run.lanes for name in lane.point} - {"seed"}
    note = (
        f"<p>Swept: {escape(', '.join(sorted(swept)))}; the text above is that of the first lane.</p>" if swept else ""
    )
    warnings = [warning for run in runs for warning in run.summary.get("warnings", [])]
    warned = "".join(f'<p class="warning">{escape(warning)}</p>' for warning in dict.fromkeys(warnings))
    return f'<section id="asked"><h2>What was asked</h2>{"".join(parts)}{note}{warned}</section>'


def _met(flat: list[tuple[Run, Lane]], several: bool) -> str:
    parts = []
    for i, (run, lane) in enumerate(flat):
        cards = "".join(_card(c) for c in lane.found.get("constraints", []))
        if not lane.found:
            cards = "<p>This run has not been evaluated yet.</p>"
        elif not cards:
            cards = "<p>No constraint was set: the reward alone.</p>"
        lost = '<p class="warning">The run diverged; these are its last good parameters.</p>'
        head = f"<h3>{escape(lane_label(run, lane, several))}</h3>" if len(flat) > 1 else ""
        parts.append(
            f'<div data-lane="{i}"{" hidden" if i else ""}>{head}{lost if lane.found.get("diverged") else ""}'
            f'<div class="cards">{cards}</div>{_gained(lane)}{_episodes(lane)}</div>'
        )
    return f'<section id="met"><h2>Was it met?</h2>{"".join(parts)}</section>'


def _card(c: dict[str, Any]) -> str:
    found = verdict(c)
    low, high = c["risk_value_ci"]
    numbers = {
        "limit c": _number(c["threshold"]),
        "risk": _number(c["risk_value"]),
        "95% interval": f"{_number(low)} to {_number(high)}",
        **(
            {best_t(c["risk"]): _number(first_of(c, "quantile")), "-t": _number(first_of(c, "t"), -1)}
            if has_t(c["risk"])
            else {}
        ),
        "lambda": _number(c["lam"]),
        "lambda x slack": _number(c["lam"] * (c["threshold"] - c["risk_value"])),
    }
    cells = "".join(f"<div><span>{name}</span><b>{value}</b></div>" for name, value in numbers.items())
    reasons = "".join(f"<li>{escape(reason)}</li>" for reason in found.reasons)
    sampled = c.get("sampled")
    if sampled:
        word = "kept" if sampled["satisfied"] else "not kept"
        reasons += f"<li>with sampled actions, as in training: {_number(sampled['risk_value'])}, {word}</li>"
    return (
        f'<div class="card {found.mark}"><h3>{escape(c["name"])}: {symbol(c["risk"])} &le; {c["threshold"]:g}</h3>'
        f'<div class="head">{escape(found.head)}</div><div class="numbers">{cells}</div><ul>{reasons}</ul></div>'
    )


def _gained(lane: Lane) -> str:
    objective = lane.found.get("objective")
    return f"<p>{gained(objective)}</p>" if objective else ""


def _episodes(lane: Lane) -> str:
    e = lane.found.get("eval")
    if not e:
        return ""
    return (
        f"<p>{e['episodes']} evaluation episodes of the mean action, the environment's noise on: return "
        f"<b>{e['reward_mean']:.1f}</b> &plusmn; {e['reward_std']:.1f}, cost {e['cost_mean']:.2f} an episode "
        f"({e['cost_rate']:.4f} a step), length {e.get('length_mean', float('nan')):.0f}.</p>"
    )


def _panels(flat: list[tuple[Run, Lane]], several: bool) -> str:
    options = "".join(
        f'<option value="{i}">{escape(lane_label(run, lane, several))}</option>' for i, (run, lane) in enumerate(flat)
    )
    figures = "".join(f'<figure id="panel-{name}"></figure>' for name in ("reward", "t", "lam", "law"))
    hidden = "" if len(flat) > 1 else " hidden"
    return (
        f'<section id="panels"><h2>How it went</h2><div class="controls"><label{hidden}>lane '
        f'<select id="lane">{options}</select></label><label hidden>constraint <select id="constraint"></select>'
        f'</label></div><div class="grid">{figures}</div></section>'
    )


def _compare(runs: Sequence[Run], flat: list[tuple[Run, Lane]]) -> str:
    swept = sorted({name for _, lane in flat for name, value in lane.point.items() if isinstance(value, int | float)})
    axes = "".join(f'<option value="{escape(name)}">{escape(name)}</option>' for name in swept)
    return (
        '<section id="compare"><h2>Lanes against each other</h2><div class="controls"><label>frontier over '
        f'<select id="frontier-x"><option value="risk">risk</option>{axes}</select></label></div>'
        '<div class="grid"><figure id="frontier"></figure><figure id="learning"></figure></div>'
        f"{_over_seeds(runs)}</section>"
    )


def _over_seeds(runs: Sequence[Run]) -> str:
    """A row for each group of lanes that differ in nothing but the seed."""
    rows = []
    for label, lanes in groups(runs).items():
        row = over_seeds(lanes)
        if row:
            ends = [_number(x) for x in row["interval"]] if row["interval"] else None
            cells = [_cell(label), _cell(row["seeds"]), _cell(row["iqm"])]
            cells += [f"<td>{' to '.join(ends)}</td>" if ends else "<td>-</td>"]
            cells += [f"<td>{row['kept']} of {row['constraints']}</td>", _cell(row["ratio"])]
            rows.append(f"<tr>{''.join(cells)}</tr>")
    if not rows:
        return ""
    heads = ("seeds", "return", "95% interval", "constraints kept", "largest risk / c")
    head = '<th class="text">group</th>' + "".join(f"<th>{name}</th>" for name in heads)
    return (
        f'<h3>Over seeds</h3><div class="scroll"><table id="seeds"><tr>{head}</tr>{"".join(rows)}</table></div>'
        "<p>Return: interquartile mean over seeds, with a bootstrap interval where there are three or more.</p>"
    )


def _table(flat: list[tuple[Run, Lane]], several: bool) -> str:
    swept = sorted({name for _, lane in flat for name in lane.point})
    names = list(dict.fromkeys(name for _, lane in flat for name in by_name(lane)))
    heads = [("lane", True)] + [("task", True), ("algo", True)] * several + [(name, False) for name in swept]
    heads += [(head, False) for head in ("return", "sd", "cost", "length")]
    for name in names:
        heads += [(f"{name} verdict", True)]
        heads += [(f"{name} {head}", False) for head in ("risk", "/ c", "best -t", "-t", "lambda")]
    row_head = "".join(
        f'<th class="{"text" * text}"><button type="button">{escape(h)}</button></th>' for h, text in heads
    )
    rows = []
    for i, (run, lane) in enumerate(flat):
        e = lane.found.get("eval", {})
        cells = [_cell(lane_label(run, lane, several)), *([_cell(run.env), _cell(run.algo)] if several else [])]
        cells += [_cell(lane.point.get(name)) for name in swept]
        cells += [_cell(e.get(key)) for key in ("reward_mean", "reward_std", "cost_mean", "length_mean")]
        for name in names:
            cells += _constraint_cells(by_name(lane).get(name))
        rows.append(f'<tr data-row="{i}">{"".join(cells)}</tr>')
    return (
        '<section id="lanes"><h2>Every lane</h2><div class="controls"><input id="filter" class="wide" type="search" '
        'placeholder="filter: words that a row must contain" aria-label="filter"><span id="count">'
        f'{len(flat)} of {len(flat)} lanes</span></div><div class="scroll"><table><thead><tr>{row_head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div></section>"
    )


def _constraint_cells(c: dict[str, Any] | None) -> list[str]:
    if c is None:
        return ['<td data-value=""></td>'] * 6
    found = verdict(c)
    word = {"kept": "kept", "edge": "at the limit", "broken": "not kept"}[found.mark]
    best = minus_t = '<td data-value=""></td>'
    if has_t(c["risk"]):
        best, minus_t = _cell(first_of(c, "quantile")), _cell(first_of(c, "t"), -1)
    numbers = [_cell(c["risk_value"]), _cell(over_limit(c)), best, minus_t, _cell(c["lam"])]
    return [f'<td class="text {found.mark}">{word}</td>', *numbers]


def _replay(any_replay: bool) -> str:
    if not any_replay:
        return ""
    return (
        '<section id="replay"><h2>The policy at work</h2><canvas width="960" height="480" aria-label="replay"></canvas>'
        '<div class="controls"><button id="play" type="button">Play</button>'
        '<input id="frame" class="wide" type="range" min="0" value="0" aria-label="frame">'
        "<span>drag the picture to turn it</span></div>"
        "<p class=none hidden>No recording of this lane: its task has no bodies to draw, or it was not recorded.</p>"
        "</section>"
    )


def _settings(runs: Sequence[Run]) -> str:
    parts = []
    for run in runs:
        rows = "".join(
            f'<tr><td class="text">{escape(name)}</td><td>{escape(str(old))}</td><td>{escape(str(new))}</td></tr>'
            for name, old, new in preset_differences(run.config)
        )
        head = '<tr><th class="text">setting</th><th>preset</th><th>here</th></tr>'
        body = f'<div class="scroll"><table>{head}{rows}</table></div>' if rows else "<p>None: the preset as it is.</p>"
        label = f"{run.name}: {run.env}, {run.algo}" if len(runs) > 1 else f"{run.env}, {run.algo}"
        parts.append(f"<details{' open' if len(runs) == 1 else ''}><summary>{escape(label)}</summary>{body}</details>")
    return f'<section id="settings"><h2>Settings that differ from the preset</h2>{"".join(parts)}</section>'


def _reproduce(runs: Sequence[Run]) -> str:
    parts = []
    for run in runs:
        versions = ", ".join(f"{name} {number}" for name, number in run.summary.get("versions", {}).items())
        config = escape(yaml.safe_dump(plain(run.config), sort_keys=False))
        head = f"<h3>{escape(run.name)}</h3>" if len(runs) > 1 else ""
        parts.append(
            f"{head}<pre>{escape(command(run.config))}</pre><p>{escape(versions)}</p>"
            f"<details><summary>config.yaml</summary><pre>{config}</pre></details>"
        )
    return f'<section id="reproduce"><h2>To get the same again</h2>{"".join(parts)}</section>'


def _without_script(runs: Sequence[Run]) -> str:
    images = [
        f'<img alt="{escape(path.stem)}" src="data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}">'
        for run in runs[:1]
        for path in sorted((run.folder / "figures").glob("*.png"))[:4]
    ]
    return f"<noscript><main>{''.join(images)}</main></noscript>"


def _cell(value: Any, sign: int = 1) -> str:
    if value is None:
        return '<td data-value=""></td>'
    if isinstance(value, str):
        return f'<td class="text">{escape(value)}</td>'
    number = value[0] if isinstance(value, list) else value
    return f'<td data-value="{sign * number}">{_number(value, sign)}</td>'


def _number(value: float | list[float], sign: int = 1) -> str:
    return " ".join(_number(x, sign) for x in value) if isinstance(value, list) else f"{sign * value + 0.0:.4g}"


def _json(name: str, content: Any) -> str:
    text = json.dumps(plain(content), allow_nan=False).replace("<", "\\u003c")  # nothing in it is markup
    return f'<script type="application/json" id="{name}">{text}</script>'


def _asset(name: str) -> str:
    return (files("riskppo_jax.report") / name).read_text(encoding="utf-8")
