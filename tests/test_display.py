"""What a run shows while it goes, as lines and as a table: limits that are still on their way say where they are."""

import io

import pytest
from rich.console import Console

from riskppo_jax.display import Display, SweepDisplay

POINT = {
    "train/env_steps": 2048, "train/return": 12.5, "train/cost": 0.25, "train/episode_length": 100.0,
    "train/bad_streak": 0, "ppo/approx_kl": 0.01, "ppo/entropy": 1.0, "perf/steps_per_second": 1000.0,
    "constraint0/threshold": 0.2, "constraint0/limit": 0.2, "constraint0/risk": 0.3, "constraint0/t_batch": -0.1,
    "constraint0/t": -0.11, "constraint0/lam": 0.4,
}  # fmt: skip


@pytest.fixture(params=["lines", "table"])
def console(request) -> Console:
    return Console(file=io.StringIO(), force_terminal=request.param == "table", width=200, color_system=None)


def shown(display: Display, point, capsys) -> str:
    with display:
        display.show(point)
    return capsys.readouterr().out + display.console.file.getvalue()


@pytest.mark.parametrize("limit, now", [(0.2, False), (1.4, True)])
def test_a_run_shows_its_limit_and_where_it_is(console, capsys, limit, now):
    display = Display("a run", [("speed", {"name": "cvar", "beta": 0.3})], 1, 2048, console)
    text = shown(display, POINT | {"constraint0/limit": limit}, capsys)
    assert "speed" in text and "0.2" in text and "0.4" in text and "0.11" in text
    assert ("(now 1.4)" in text) == now


def test_of_evar_the_level_is_shown_and_no_scale(console, capsys):
    """Its second t is a scale: it has no place on the axis of the quantity, and no minus sign."""
    point = POINT | {"constraint0/t": [-0.11, 0.77], "constraint0/t_batch": [-0.1, 0.66]}
    text = shown(Display("a run", [("speed", {"name": "evar", "alpha": 0.3})], 1, 2048, console), point, capsys)
    assert "0.11" in text and "0.77" not in text and "0.66" not in text


@pytest.mark.parametrize("limit, now", [(0.2, False), (1.4, True)])
def test_a_sweep_shows_where_its_limits_are(console, capsys, limit, now):
    points = [{"risk.beta": beta, "seed": seed} for beta in (0.1, 0.3) for seed in (0, 1)]
    display = SweepDisplay(points, "a sweep", [("speed", {"name": "cvar", "beta": 0.3})], 1, 2048, console)
    lanes = [POINT | {"constraint0/limit": limit, "constraint0/lam": lam} for lam in (0.1, 0.2, 0.3, 0.4)]
    text = shown(display, lanes, capsys)
    assert "speed" in text and "0.3" in text
    assert ("now 1.4" in text) == now


def test_of_a_mean_no_t_is_shown(console, capsys):
    text = shown(Display("a run", [("speed", {"name": "mean"})], 1, 2048, console), POINT, capsys)
    assert "0.3" in text and "0.11" not in text and "-0.1" not in text
