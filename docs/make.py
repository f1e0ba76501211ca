"""What the documentation shows and nobody should type: pictures of risk measures, tables of benchmarks.

python docs/make.py            # docs/img/risk_*.png and docs/benchmarks.md
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

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
    written = pictures(ROOT / "docs" / "img")
    page = ROOT / "docs" / "benchmarks.md"
    page.write_text(benchmarks(sorted((ROOT / "experiments" / "bench").glob("*.json"))))
    print(f"{len(written)} pictures, {page.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
