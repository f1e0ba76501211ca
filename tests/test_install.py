"""What is installed: the versions asked for, the exact ones tested, and why one of jax is left out."""

import pathlib
import tomllib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from packaging.requirements import Requirement

ROOT = pathlib.Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LINES = [line.strip() for line in (ROOT / "constraints.txt").read_text().splitlines()]
CONSTRAINTS = [line for line in LINES if line and not line.startswith("#")]


EXTRAS = PROJECT["optional-dependencies"]


def requirements(*extras):
    groups = PROJECT["dependencies"], *map(EXTRAS.get, extras)
    return [Requirement(text) for group in groups for text in group]


def test_every_way_to_ask_for_jax_leaves_out_0_10_2():
    asked = [requirement for requirement in requirements(*EXTRAS) if requirement.name == "jax"]
    assert len(asked) >= 2  # the package and its extra for GPUs
    for requirement in asked:
        assert "0.10.2" not in requirement.specifier
        assert "0.10.1" in requirement.specifier
    assert jax.__version__ != "0.10.2"


@pytest.mark.parametrize("rows", [32768, 32769])
def test_a_small_matrix_times_many_vectors(rows):
    """On a CPU jax 0.10.2 gets this wrong from 32769 rows on: no error, other numbers."""
    rng = np.random.default_rng(0)
    matrix, vectors = (rng.normal(size=size).astype(np.float32) for size in ((3, 3), (rows, 3)))
    found = jax.jit(jax.vmap(lambda v: jnp.sum((matrix @ v) ** 2)))(vectors)
    expected = np.sum((vectors.astype(float) @ matrix.T.astype(float)) ** 2, axis=1)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_constraints_are_exact_and_name_no_index():
    assert CONSTRAINTS
    for line in CONSTRAINTS:
        requirement = Requirement(line)
        assert requirement.url is None, line
        (pin,) = requirement.specifier
        assert pin.operator == "==" and "*" not in pin.version, line
    for line in LINES:
        assert "://" not in line and not line.startswith("-"), line


def test_constraints_meet_what_is_asked_for():
    pinned = {Requirement(line).name.lower().replace("_", "-"): line.split("==")[1] for line in CONSTRAINTS}
    assert len(pinned) == len(CONSTRAINTS)
    for requirement in requirements("dev"):
        name = requirement.name.lower().replace("_", "-")
        assert name in pinned, f"{name} is asked for and not pinned"
        assert requirement.specifier.contains(pinned[name], prereleases=True), name
