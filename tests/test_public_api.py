"""The public face: names that others rely on, modules that stay readable, a package that stays light."""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import riskppo_jax as rp
from riskppo_jax import plotting, render, report
from riskppo_jax.cli import VERBS
from riskppo_jax.risk import oce

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "riskppo_jax").rglob("*.py"))

# what `import riskppo_jax as rp` offers; adding is free, taking away is not
PUBLIC = {
    "Constraint", "Problem", "evaluate", "gym", "interop", "list_envs", "make_env", "make_train", "oce",
    "priced_reward", "restore", "save", "stats", "sweep",
}  # fmt: skip
MEASURES = {
    "mean", "cvar", "two_slope", "mean_cvar", "entropic", "quadratic", "monotone_quadratic", "polynomial", "log",
    "smoothed_cvar", "soft_cvar", "spectral", "evar",
}  # fmt: skip
COMMANDS = {
    "bench", "completion", "doctor", "envs", "evaluate", "export", "parity", "plot", "render", "report", "train",
    "truth", "watch",
}  # fmt: skip
FIGURES = {"frontier", "histogram", "learning_curves", "overview", "price", "reward_curve", "tracking", "utility"}

LONGEST = 350
# module -> why it may be longer
LONG: dict[str, str] = {}


def test_names_of_the_package():
    assert set(rp.__all__) >= PUBLIC
    for name in PUBLIC:
        assert getattr(rp, name) is not None
    with pytest.raises(AttributeError):
        rp.no_such_name  # noqa: B018


def test_tools_see_them():
    """Completion asks `dir`, checkers read `__all__` and the marker."""
    assert set(rp.__all__) <= set(dir(rp)) and rp.__version__.count(".") == 2
    assert set(rp.__all__) == {*rp._LAZY, *rp._MODULES}
    assert (ROOT / "riskppo_jax" / "py.typed").is_file()


def test_risk_measures():
    assert set(oce.MEASURES) == MEASURES and all(callable(getattr(oce, name)) for name in MEASURES)
    for name in ("g", "dg", "t_interval", "t_star", "value", "config"):
        assert hasattr(oce.cvar(0.3), name)


def test_commands():
    assert set(VERBS) >= COMMANDS
    for verb in VERBS:
        assert (ROOT / "riskppo_jax" / "cli" / f"{verb}.py").is_file()


def test_figures_and_films():
    assert all(callable(getattr(plotting, name)) for name in FIGURES)
    assert {"record", "film", "write_mp4", "write_gif", "find_backend"} <= set(render.__all__)
    assert callable(report.write_report)


@pytest.mark.parametrize(
    "name", ["make_env", "make_train", "evaluate", "priced_reward", "save", "restore", "list_envs"]
)
def test_public_functions_are_documented(name):
    function = getattr(rp, name)
    assert inspect.getdoc(function) and inspect.signature(function).return_annotation is not inspect.Signature.empty


def test_every_module_says_what_it_is():
    for path in SOURCES:
        text = path.read_text()
        assert not text.strip() or text.lstrip().startswith('"""'), path.relative_to(ROOT)


def test_no_module_is_too_long():
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in SOURCES}
    long = {name: length for name, length in lengths.items() if length > LONGEST}
    assert long.keys() <= LONG.keys(), f"over {LONGEST} lines without a reason: {long}"


def test_importing_stays_light():
    """`import riskppo_jax` and `riskppo --help` load neither JAX nor MuJoCo."""
    heavy = "[name for name in ('jax', 'mujoco', 'matplotlib') if name in sys.modules]"
    code = f"import sys, riskppo_jax, riskppo_jax.cli; print({heavy})"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_optional_packages_are_not_needed_to_read_runs():
    code = (
        "import sys; sys.modules.update(dict.fromkeys(['onnx', 'imageio_ffmpeg', 'tensorboardX', 'wandb', 'brax']));"
        "import riskppo_jax.report, riskppo_jax.plotting, riskppo_jax.render, riskppo_jax.watch, riskppo_jax.export"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
