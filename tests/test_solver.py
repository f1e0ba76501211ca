"""The constraint solver of `mjx` against solutions known beforehand."""

import jax
import jax.numpy as jnp
import numpy as np

from riskppo_jax.engines.dynamics import solve

ROUNDING = np.finfo(np.float32).eps
WORLDS, ROWS, DOFS = 64, 24, 8


def pressed_worlds(away: float) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Worlds that hardly move because large forces cancel, with a guess nearby, and their exact accelerations.

    With forces `f >= 0` on half of the rows, `M (x - smooth) = J' f` and `f = -D (J x - reference)` make `x` optimal.
    """
    rng = np.random.default_rng(0)
    jacobian = rng.normal(size=(WORLDS, ROWS, DOFS))
    stiffness = 10 ** rng.uniform(-0.5, 1.5, size=(WORLDS, ROWS))
    root = 0.1 * rng.normal(size=(WORLDS, DOFS, DOFS))
    inertia = root @ root.swapaxes(1, 2) + 0.05 * np.eye(DOFS)
    x = 1e-3 * rng.normal(size=(WORLDS, DOFS))
    pushes = np.arange(ROWS) < ROWS // 2
    force = np.where(pushes, rng.uniform(20, 50, size=(WORLDS, ROWS)), 0.0)
    rows = np.where(pushes, -force / stiffness, rng.uniform(1, 2, size=(WORLDS, ROWS)))
    problem = {
        "jacobian": jacobian,
        "stiffness": stiffness,
        "reference": (jacobian @ x[..., None])[..., 0] - rows,
        "inertia": inertia,
        "smooth": x - np.linalg.solve(inertia, (jacobian.swapaxes(1, 2) @ force[..., None]))[..., 0],
        "warm": x + away * rng.normal(size=x.shape),
    }
    return {name: value.astype(np.float32) for name, value in problem.items()}, x


def accelerations(problem: dict[str, np.ndarray], iterations: int) -> np.ndarray:
    def one(p):
        fields = (p["jacobian"], p["stiffness"], p["reference"], 0, p["inertia"], p["smooth"], p["warm"])
        return solve(*fields, iterations, searches=6)[0]

    return np.asarray(jax.jit(jax.vmap(one))(jax.tree.map(jnp.asarray, problem)))


def test_one_newton_step_is_exact_where_the_right_rows_push_already():
    problem, exact = pressed_worlds(away=1e-2)
    scale = np.abs(problem["smooth"]).max(axis=1)  # forces of this size cancel, so does their rounding
    off = np.abs(accelerations(problem, 1) - exact).max(axis=1) / scale
    assert off.max() < 20 * ROUNDING


def test_worlds_stop_once_the_right_rows_push():
    """A step length found in float32 is off by per cents here: what decides is which rows push after a whole step.

    Judged by that length, such worlds went on to the last iteration, and all others of their batch with them.
    """
    problem, _ = pressed_worlds(away=1e-4)
    assert np.array_equal(accelerations(problem, 1), accelerations(problem, 20))
