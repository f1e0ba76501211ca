"""Figures: arrays in, matplotlib figures out; files of runs and sweeps."""

import numpy as np
import pytest
from fake_runs import fake_run
from matplotlib.figure import Figure

from riskppo_jax import plotting
from riskppo_jax.cli import main
from riskppo_jax.risk import oce

STEPS = np.linspace(0, 1e6, 20)
RISING = np.linspace(0, 1, 20)


def test_every_function_returns_a_figure():
    curve = (STEPS, RISING)
    final = {"reward": 1.0, "reward_std": 0.1, "quantile": 0.9, "minus_t": 0.91, "risk": 1.0}
    samples = np.random.default_rng(0).normal(0.5, 0.2, 500)
    found = [
        plotting.reward_curve(STEPS, RISING, (1.0, 0.1)),
        plotting.tracking(curve, curve, curve, 0.5),
        plotting.price(STEPS, RISING),
        plotting.histogram(samples, 0.5, 0.4, 0.4, 0.45),
        plotting.overview(curve, curve, curve, curve, curve, samples, 0.5, final),
        plotting.learning_curves({"a": (STEPS, np.stack([RISING, RISING + 1])), "b": (STEPS, RISING[None])}),
        plotting.frontier(
            np.array([1.0, 2]), np.array([3.0, 4]), ["a", "b"], [1.5], np.array([[0.9, 1.1], [1.9, 2.1]])
        ),
        plotting.utility(oce.cvar(0.3), np.linspace(-2, 2, 50)),
    ]
    assert all(isinstance(figure, Figure) for figure in found)


def test_a_cost_of_0_or_1_has_a_bar_for_each():
    figure = plotting.histogram(np.repeat([0.0, 1.0], [9_999, 1]), 0.0, 0.0, None, 1e-4)
    (axis,) = figure.axes
    assert [bar.get_height() for bar in axis.containers[0]] == [0.9999, 0.0001]
    assert axis.get_yscale() == "log" and axis.get_ylim()[0] < 1e-4
    assert {"99.990%", "0.010%"} <= {text.get_text() for text in axis.texts}


@pytest.mark.parametrize(("after", "expected"), [(None, 1.0), (400_000, 0.4)])
def test_the_final_evaluation_is_marked_where_its_policy_was_taken_from(after, expected):
    curve = (STEPS, RISING)
    final = {"reward": 1.0, "reward_std": 0.1, "quantile": 0.9, "minus_t": None, "risk": 1.0, "after": after}
    figure = plotting.overview(curve, curve, curve, curve, curve, RISING, 0.5, final)
    ((mark, *_),) = figure.axes[0].containers
    assert mark.get_xdata() == pytest.approx([expected])


def test_a_limit_that_comes_down_is_drawn_beside_its_own_and_stays_in_the_frame():
    curve, final = (STEPS, RISING), {"reward": 1.0, "reward_std": 0.1, "quantile": 0.9, "minus_t": 0.9, "risk": 1.0}
    way = (STEPS, 70.0 - RISING)
    for limit in (None, way):
        figure = plotting.overview(curve, curve, curve, curve, curve, RISING, 0.5, final, limit=limit)
        drawn = [line for line in figure.axes[1].lines if line.get_label() == "limit on its way"]
        assert len(drawn) == (limit is not None)
    np.testing.assert_allclose(drawn[0].get_ydata(), way[1])
    assert figure.axes[1].get_ylim()[1] > 70.0 - RISING.min()


def test_column_figures_fit_a_column_with_legible_type():
    figure = plotting.price(STEPS, RISING)
    assert figure.get_size_inches()[0] == pytest.approx(plotting.COLUMN)
    (axis,) = figure.axes
    assert axis.xaxis.label.get_size() >= 7 and min(t.get_size() for t in axis.get_xticklabels()) >= 7


def test_bands_cover_the_seeds():
    values = np.stack([RISING, RISING + 2, RISING + 1])
    (axis,) = plotting.learning_curves({"a": (STEPS, values)}).axes
    np.testing.assert_allclose(axis.lines[0].get_ydata(), RISING + 1)
    edges = axis.collections[0].get_paths()[0].vertices[:, 1]
    assert edges.min() == 0 and edges.max() == 3


def test_the_tail_of_a_law_is_the_share_of_steps_above():
    (axis,) = plotting.distributions({"a": np.arange(1000.0), "b": np.arange(500.0)}, [700.0]).axes
    v, share = axis.lines[0].get_data()
    assert np.interp(700.0, v, share) == pytest.approx(0.3, abs=0.002)
    assert np.interp(250.0, *axis.lines[1].get_data()) == pytest.approx(0.5, abs=0.002)


def contrast(a, b):
    """Distance of two colours' luminance, as a printer without colour sees them."""
    light = [np.dot([0.2126, 0.7152, 0.0722], [int(c[i : i + 2], 16) / 255 for i in (1, 3, 5)]) for c in (a, b)]
    return abs(light[0] - light[1])


def test_the_three_colours_of_a_panel_differ_in_print():
    assert contrast(plotting.BLUE, plotting.SKY) > 0.2 and contrast(plotting.BLUE, plotting.YELLOW) > 0.2
    assert len(set(plotting.PALETTE)) == 7


def test_files_of_a_run_and_of_a_sweep(tmp_path):
    fake_run(tmp_path / "one", betas=(0.3,), seeds=1)
    fake_run(tmp_path / "sweep", betas=(0.1,), seeds=2)
    assert main(["plot", str(tmp_path / "one")]) == 0
    folder = tmp_path / "one" / "figures"
    assert {path.name for path in folder.iterdir()} == {"overview_velocity.png", "overview_velocity.pdf"}
    assert (folder / "overview_velocity.pdf").read_bytes()[:5] == b"%PDF-"
    assert main(["plot", str(tmp_path / "sweep"), "--out", str(tmp_path / "out"), "--formats", "pdf"]) == 0
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"lane0", "lane1", "frontier_velocity.pdf", "learning_curves.pdf", "cost_curves.pdf"}
    assert main(["plot", *(str(tmp_path / run) for run in ("one", "sweep")), "--out", str(tmp_path / "both")]) == 0
    assert (tmp_path / "both" / "distributions_velocity.png").is_file()


def test_mistakes_are_one_line(tmp_path, capsys):
    run = fake_run(tmp_path / "young", betas=(0.3,), seeds=1, finished=False)
    for words in ([str(run)], [str(tmp_path), "--formats", "bmp"], [str(tmp_path / "none")]):
        assert main(["plot", *words]) == 2
        assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_a_measure_with_several_auxiliary_variables_has_its_picture():
    samples = np.random.default_rng(0).normal(size=2000).astype(np.float32)
    figure = plotting.pointwise(oce.spectral((0.5, 0.5), (0.1, 0.5)), samples)
    weight = figure.axes[1].lines[0].get_ydata()
    assert weight[5] == pytest.approx(0.5 / 0.1 + 0.5 / 0.5, rel=0.02)  # worst outcomes count at both levels
    assert abs(weight[-5]) < 1e-3  # the best at neither


def test_places_that_are_no_places(tmp_path, capsys):
    run = fake_run(tmp_path / "run", betas=(0.3,), seeds=1)
    (tmp_path / "file").write_text("")
    for words in (["plot", str(run), "--out", str(tmp_path / "file")], ["report", str(run), "--out", str(tmp_path)]):
        assert main(words) == 2
        said = capsys.readouterr().err
        assert "--out" in said and "accepts" in said and said.count("\n") == 1
    assert not list(tmp_path.parent.glob("*.tmp"))
