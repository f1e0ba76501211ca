"""What the documentation shows and nobody should type: pictures of risk measures and tasks, tables of benchmarks.

python docs/make.py            # docs/settings.md, docs/img/risk_*.png, docs/img/tasks_*.png, docs/img/robots.png,
                               # docs/benchmarks.md
"""

import inspect
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

ROOT = Path(__file__).parent.parent
# name -> parameters of the picture
MEASURES: dict[str, dict[str, float]] = {
    "mean": {},
    "cvar": {"beta": 0.3},
    "two_slope": {"gamma1": 0.5, "gamma2": 2.0},
    "mean_cvar": {"kappa": 0.5, "beta": 0.3},
    "entropic": {"gamma": 1.0},
    "quadratic": {"c": 1.0},
    "monotone_quadratic": {"c": 1.0},
    "polynomial": {"c": 0.5, "k": 3.0},
    "log": {"a": 2.5},
    "smoothed_cvar": {"beta": 0.3, "m": 0.3},
    "soft_cvar": {"beta": 0.3, "tau": 0.3},
}

# the same, of measures with several auxiliary variables
SEVERAL: dict[str, dict[str, Any]] = {
    "spectral": {"kappas": (0.5, 0.5), "betas": (0.1, 0.5)},
    "evar": {"alpha": 0.3},
}

# sheet -> its tasks, from left to right
SHEETS = {f"tasks_{task.lower()}": [f"SafetyPoint{task}{level}-v0" for level in range(3)]
          for task in ("Goal", "Button", "Push", "Circle")}  # fmt: skip
SHEETS["robots"] = [f"Safety{robot}Goal1-v0" for robot in ("Point", "Car", "Racecar", "Doggo", "Ant")]
# of worlds where 0 hides the robot or leaves it alone in a corner
SEEDS = {"SafetyPointButton1-v0": 3, "SafetyPointButton2-v0": 7, "SafetyPointPush1-v0": 9}


def pictures(folder: Path) -> list[Path]:
    """A picture for every measure; where there are several auxiliary variables, of standard normal outcomes."""
    from riskppo_jax import plotting
    from riskppo_jax.risk import oce

    u = np.linspace(-2.0, 2.0, 401)
    written = []
    for name, parameters in MEASURES.items():
        words = ", ".join(f"{key}={value:g}" for key, value in parameters.items())
        figure = plotting.utility(oce.MEASURES[name](**parameters), u, f"{name}({words})")
        written += plotting.save(figure, folder / f"risk_{name}", formats=("png",))
    normal = np.random.default_rng(0).normal(size=20_000).astype(np.float32)
    for name, parameters in SEVERAL.items():
        words = ", ".join(f"{key}={value}" for key, value in parameters.items())
        figure = plotting.pointwise(oce.MEASURES[name](**parameters), normal, f"{name}({words})")
        written += plotting.save(figure, folder / f"risk_{name}", formats=("png",))
    return written


def sheets(folder: Path, wanted: dict[str, list[str]] = SHEETS) -> list[Path]:
    """Sheets of tasks as `riskppo render --random` shows them; none where nothing can draw off-screen."""
    from riskppo_jax.errors import UserError
    from riskppo_jax.render import find_backend

    try:
        find_backend()
    except UserError as error:
        print(f"the pictures of tasks stay as they are: {error}")
        return []
    written = []
    for name, ids in wanted.items():
        width, height, zoom = (300, 300, 2) if name == "robots" else (480, 360, 1)
        image = _sheet(ids, width, height, zoom).quantize(256, dither=Image.Dither.NONE)
        written.append(folder / f"{name}.png")
        image.save(written[-1], optimize=True)
    return written


def _sheet(ids: list[str], width: int, height: int, zoom: int) -> Image.Image:
    """Tasks side by side, each under its id: from above, and the middle of what the tracking camera sees."""
    import jax

    from riskppo_jax.envs.registry import make_env
    from riskppo_jax.render import random_policy, record, views

    gap, head = 6, 30
    sheet = Image.new("RGB", (len(ids) * (width + gap) - gap, head + 2 * height + gap), "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(18)
    for column, id in enumerate(ids):
        env, left = make_env(id), column * (width + gap)
        found = views(record(env, random_policy(env), 1, jax.random.key(SEEDS.get(id, 0))), zoom * width, zoom * height)
        x, y = (zoom - 1) * width // 2, (zoom - 1) * height // 2
        draw.text((left + width / 2, head / 2), id, fill="black", font=font, anchor="mm")
        sheet.paste(Image.fromarray(found["top"]).resize((width, height)), (left, head))
        sheet.paste(Image.fromarray(found["track"]).crop((x, y, x + width, y + height)), (left, head + height + gap))
    return sheet


def benchmarks(files: list[Path]) -> str:
    """A page from what `riskppo bench ... --json` wrote."""
    parts = [
        "# Benchmarks",
        "Made by `make docs` from the files in `experiments/bench`, which `riskppo bench ... --json FILE` writes. "
        "Numbers are of the machine and versions named above each table; ratios were measured by turns in one run.",
    ]
    for file in files:
        found = json.loads(file.read_text())
        lines = [line for line in found.get("lines", []) if isinstance(line, dict)]
        if not lines:
            continue
        facts = [f"{key}: {_word(found[key])}" for key in ("cores", "backend", "settings") if key in found]
        facts.append("versions: " + ", ".join(f"{k} {v}" for k, v in found.get("versions", {}).items()))
        parts.append(f"## {found.get('subject', file.stem)} ({file.name})\n\n" + "; ".join(facts) + ".")
        parts.append(_table(lines))
    return "\n\n".join(parts) + "\n"


def settings() -> str:
    """A page with every setting of `riskppo train`, its default and its comment, from the classes that hold them."""
    from riskppo_jax import config, scheme, sgda
    from riskppo_jax import settings as own

    groups = {
        "": [own.Settings], "layout": [config.Layout], "ppo": [config.PPOHypers], "dual": [sgda.Rule, sgda.DualHypers],
        "scheme": [scheme.Scheme], "eval": [own.EvalSettings], "log": [own.LogSettings],
        "checkpoint": [own.CheckpointSettings], "sweep": [own.SweepSettings], "distributed": [own.DistributedSettings],
    }  # fmt: skip
    starts = [
        (
            "lam_max",
            "20.0",
            "bound of every price at the start, times what a unit of the quantity is worth; less for beta below 0.3",
        ),
        ("lam_init", "0.0", "every price at the start"),
        ("t_init", "0.0", "t of every constraint at the start, projected onto T"),
    ]
    parts = [
        "# Settings",
        "What `riskppo train key=value ...` accepts, with defaults; made by `python docs/make.py` from the classes "
        "that hold them. Presets change some: `env=`, `algo=` and `experiment=` name files in `conf/`. Everything "
        "under `ppo` and `dual` that is a number is traced and can be swept: `sweep.ppo.lr=[1e-4,3e-4]`. Options of a "
        "task, `env.reset=fixed` for one, are on the page of [tasks](tasks.md).",
    ]
    for group, classes in groups.items():
        rows = [(f"{group}.{name}".lstrip("."), *rest) for cls in classes for name, *rest in _fields(cls)]
        rows += [(f"dual.{name}", *rest) for name, *rest in starts] if group == "dual" else []
        table = ["| setting | default | what |", "|---|---|---|"]
        table += [f"| `{name}` | `{default}` | {what} |" for name, default, what in rows if default is not None]
        parts.append(f"## {group or 'The run'}\n\n" + "\n".join(table))
    presets = {kind: sorted(path.stem for path in (own.conf_dir() / kind).glob("*.yaml"))
               for kind in ("algo", "experiment", "risk")}  # fmt: skip
    lines = [f"- `{kind}=`: " + ", ".join(f"`{name}`" for name in names) for kind, names in presets.items()]
    parts.append("## Presets\n\n" + "\n".join(lines))
    parts.append(
        "## Environment variables\n\n"
        "- `RISKPPO_THREADS`: threads of a batch call of `native`; by default this device's share of the cores.\n"
        "- `PJRT_NPROC`: threads of XLA on a CPU; 1 beside `native` (`PJRT_NPROC=2 riskppo bench train` compares).\n"
        "- `RISKPPO_CACHE`: folder of compiled programs and of layouts that took long to draw, or `off`."
    )
    return "\n\n".join(parts) + "\n"


def _fields(cls: type) -> list[tuple[str, str | None, str]]:
    """Name, default as written, and what is said about it: a comment behind it, or an entry of `Attributes`."""
    said = dict(re.findall(r"^  (\w+): (.*(?:\n    .*)*)", inspect.getdoc(cls) or "", re.M))
    rows = []
    for line in inspect.getsource(cls).splitlines():
        found = re.match(r"    (\w+): [^=]+? = (.+?)(?:  # (.*))?$", line)
        if found:
            name, default, comment = found.groups()
            default = re.sub(r"field\(default_factory=(dict|list)\)", "{}", default)
            default = None if "default_factory" in default else _as_typed(default)
            rows.append((name, default, (comment or " ".join(said.get(name, "").split())).replace("|", "/")))
    return rows


def _as_typed(default: str) -> str:
    """A default as one would give it on the command line."""
    words = {"None": "null", "True": "true", "False": "false", "math.log(0.5)": "ln 0.5"}
    return words.get(default, default.strip('"').replace("(", "[").replace(")", "]").replace("_000", "000"))


def _table(lines: list[dict[str, Any]]) -> str:
    heads = [key for key in dict.fromkeys(key for line in lines for key in line)
             if any(line.get(key) not in (None, "") for line in lines)]  # fmt: skip
    rows = ["| " + " | ".join(_word(line.get(key)) for key in heads) + " |" for line in lines]
    return "\n".join(["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads), *rows])


def _word(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_word(item)}" for key, item in value.items())
    if isinstance(value, list):
        return " ".join(map(_word, value))
    return str(value).replace("|", "/")


def main() -> int:
    written = pictures(ROOT / "docs" / "img") + sheets(ROOT / "docs" / "img")
    page = ROOT / "docs" / "benchmarks.md"
    page.write_text(benchmarks(sorted((ROOT / "experiments" / "bench").glob("*.json"))))
    (ROOT / "docs" / "settings.md").write_text(settings())
    print(f"{len(written)} pictures, {page.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
