"""`report.html`: one page that needs nothing else, figures included."""

import base64
from html import escape
from pathlib import Path
from typing import Any

import yaml

from riskppo_jax.settings import Settings, to_dict

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
table { border-collapse: collapse; margin: 1rem 0 } td, th { padding: .25rem .8rem; text-align: right }
th { border-bottom: 1px solid #999 } td:first-child, th:first-child { text-align: left }
img { max-width: 100% } pre { background: #f5f5f5; padding: 1rem; overflow: auto; font-size: 13px }
.kept { color: #2b8a3e } .broken, .warning { color: #b3261e }
"""


def write_report(folder: Path, summary: dict[str, Any], settings: Settings) -> Path:
    """Writes the page from a run's summary and the figures in its directory."""
    lane = summary["lanes"][0]
    images = [
        f'<img alt="{escape(path.stem)}" src="data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}">'
        for path in sorted((folder / "figures").glob("*.png"))
    ]
    title = f"{summary['env']}, {summary['algo']}, seed {lane['seed']}"
    page = f"""<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>
<style>{_STYLE}</style><h1>{escape(title)}</h1>
<p>{summary["env_steps"]:,} environment steps on {escape(summary["engine"])} in {summary["wall_seconds"]:.0f} s.
Evaluation: {lane["eval"]["episodes"]} episodes from fixed starts, the environment's noise on.</p>
{_warnings(summary, lane)}
<h2>Constraints</h2>{_constraints(lane)}
<h2>Episodes</h2>{_episodes(lane)}
{"".join(images)}
<h2>Settings</h2><pre>{escape(yaml.safe_dump(to_dict(settings), sort_keys=False))}</pre>
<p>{escape(", ".join(f"{name} {number}" for name, number in summary["versions"].items()))}</p></html>
"""
    path = folder / "report.html"
    draft = path.with_suffix(".tmp")
    draft.write_text(page, encoding="utf-8")
    draft.replace(path)
    return path


def _warnings(summary: dict[str, Any], lane: dict[str, Any]) -> str:
    words = list(summary["warnings"])
    if lane["diverged"]:
        words.insert(0, "The run diverged; these are its last good parameters.")
    return "".join(f'<p class="warning">{escape(word)}</p>' for word in words)


def _constraints(lane: dict[str, Any]) -> str:
    if not lane["constraints"]:
        return "<p>None: the reward alone.</p>"
    heads = ("", "limit c", "risk", "95% interval", "quantile", "-t", "lambda", "mean", "")
    rows = []
    for c in lane["constraints"]:
        measure = ", ".join(f"{key} {value}" for key, value in c["risk"].items() if key != "name")
        label = f"{c['name']} ({c['risk']['name']}{' ' + measure if measure else ''})"
        for actions, found in (("mean action", c), ("sampled", c["sampled"])):
            low, high = found["risk_value_ci"]
            word = ("kept", "kept") if found["satisfied"] else ("broken", "not kept")
            cells = [f"{label}, {actions}", _number(c["threshold"]), _number(found["risk_value"]),
                     f"{_number(low)} to {_number(high)}", _number(found["quantile"]), _number(c["t"], -1),
                     _number(c["lam"]), _number(found["mean"])]  # fmt: skip
            row = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
            rows.append(f'<tr>{row}<td class="{word[0]}">{word[1]}</td></tr>')
    return _table(heads, rows)


def _episodes(lane: dict[str, Any]) -> str:
    rows = []
    for label, key in (("mean action", "eval"), ("sampled", "eval_sampled")):
        e = lane[key]
        cells = [label, f"{e['reward_mean']:.1f} &plusmn; {e['reward_std']:.1f}", f"{e['cost_mean']:.2f}",
                 f"{e['cost_rate']:.4f}", f"{e['length_mean']:.0f}"]  # fmt: skip
        rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    return _table(("", "return", "cost", "cost per step", "length"), rows)


def _table(heads: tuple[str, ...], rows: list[str]) -> str:
    return f"<table><tr>{''.join(f'<th>{head}</th>' for head in heads)}</tr>{''.join(rows)}</table>"


def _number(value: float | list[float], sign: int = 1) -> str:
    return " ".join(_number(x, sign) for x in value) if isinstance(value, list) else f"{sign * value + 0.0:.4g}"
