"""One physics step on MJX's parts, lean enough for a scan.

MJX supplies kinematics, inertia, contacts and constraint rows. What is done here is what its own step does
at length: Runge-Kutta stages in a loop instead of four copies of the program (a quarter of the compile
time), and the constraint solver with an exact test of having arrived instead of a tolerance that float32
cannot meet. The same numbers come out, up to rounding.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from mujoco import mjx

from riskppo_jax.types import Array

_RK4_STEP = np.array([0.0, 0.5, 0.5, 1.0])  # how far stage i looks ahead, along stage i - 1
_RK4_WEIGHT = np.array([1.0, 2.0, 2.0, 1.0]) / 6.0

Read = Callable[[mjx.Data, Array], Any]  # data of a stage, whether it is the last -> what to keep of it


def supports(model: mujoco.MjModel) -> bool:
    """Whether `step` knows everything in this model; otherwise `mjx.step` has to do."""
    integrators = (mujoco.mjtIntegrator.mjINT_EULER, mujoco.mjtIntegrator.mjINT_RK4)
    friction = (model.dof_frictionloss > 0).any() or (model.tendon_frictionloss > 0).any()
    pyramidal = model.opt.cone == mujoco.mjtCone.mjCONE_PYRAMIDAL
    return model.opt.integrator in integrators and model.na == 0 and pyramidal and not friction


def step(
    model: mjx.Model, data: mjx.Data, iterations: int, searches: int, read: Read, lost: Array | float = 0.0
) -> tuple[mjx.Data, Any, Array | float]:
    """State after one time step, what `read` keeps of the last forward pass, and the velocity lost to rounding.

    Args:
      model, data: as for `mjx.step`; of `data` only time, qpos, qvel, warm start, ctrl and mocap count.
      iterations: most Newton iterations of the constraint solver; it stops once the pushing rows stay.
      searches: refinements of the step length in each of them.
      read: called with the data of a forward pass and whether it is the last of this step.
      lost: velocity that rounding took away in earlier steps, given back in this one (Euler only).
    """
    start = data
    h = model.opt.timestep
    rk4 = model.opt.integrator == mjx.IntegratorType.RK4

    def stage(state, tableau):
        qvel, qacc, qvel_sum, qacc_sum = state
        ahead, weight, final = tableau
        now = start.replace(
            qpos=_advance(model, start.qpos, h * ahead * qvel),
            qvel=start.qvel + h * ahead * qacc,
            qacc_warmstart=jnp.where(ahead > 0, qacc, start.qacc_warmstart),
        )
        now = forward(model, now, iterations, searches)
        sums = qvel_sum + weight * now.qvel, qacc_sum + weight * now.qacc
        return (now.qvel, now.qacc, *sums), read(now, final)

    if rk4:
        zero = jnp.zeros_like(start.qvel)
        tableau = jnp.asarray(_RK4_STEP, float), jnp.asarray(_RK4_WEIGHT, float), np.arange(4) == 3
        (_, qacc, mean_qvel, mean_qacc), kept = jax.lax.scan(stage, (zero, zero, zero, zero), tableau)
        kept = jax.tree.map(lambda x: x[-1], kept)
        qvel = start.qvel + h * mean_qacc
        qpos = _advance(model, start.qpos, h * mean_qvel)
    else:
        now = forward(model, start, iterations, searches)
        qacc, kept = now.qacc, read(now, jnp.array(True))
        gain = h * _damped(model, now) + lost
        qvel = start.qvel + gain
        lost = gain - (qvel - start.qvel)
        qpos = _advance(model, start.qpos, h * qvel)
    return start.replace(qpos=qpos, qvel=qvel, qacc_warmstart=qacc, time=start.time + h), kept, lost


def forward(model: mjx.Model, data: mjx.Data, iterations: int, searches: int) -> mjx.Data:
    """MJX's forward dynamics with the solver below and without sensors."""
    data = mjx.fwd_velocity(model, mjx.fwd_position(model, data))
    data = mjx.fwd_acceleration(model, mjx.fwd_actuation(model, data))
    if not data._impl.efc_J.shape[0]:
        return data.replace(qacc=data.qacc_smooth)
    inertia = mjx.full_m(model, data) if mjx.is_sparse(model) else data._impl.M
    qacc, force = solve(
        data._impl.efc_J, data._impl.efc_D, data._impl.efc_aref, data._impl.ne, inertia,
        data.qacc_smooth, data.qacc_warmstart, iterations, searches,
    )  # fmt: skip
    data = data.replace(qacc=qacc, qfrc_constraint=data._impl.efc_J.T @ force)
    return data.tree_replace({"_impl.efc_force": force})


def solve(
    jacobian: Array,
    stiffness: Array,
    reference: Array,
    equalities: int,
    inertia: Array,
    smooth: Array,
    warm: Array,
    iterations: int,
    searches: int,
) -> tuple[Array, Array]:
    """Acceleration `x` that minimises MuJoCo's convex cost, and the force of each constraint row.

    The cost is `(x - smooth)' M (x - smooth) / 2` plus `D r^2 / 2` over rows `r = J x - reference` that are
    equalities or negative. Newton's method on a function that is quadratic in pieces: a step is exact as soon as
    the right rows push.
    """
    always = np.arange(len(reference)) < equalities

    def pushing(r):
        return jnp.where(always | (r < 0), stiffness, 0.0)

    def cost(x, r):
        away = x - smooth
        return away @ (inertia @ away) + jnp.sum(pushing(r) * r**2)

    rows = [jacobian @ x - reference for x in (smooth, warm)]
    warmer = cost(warm, rows[1]) < cost(smooth, rows[0])
    x = jnp.where(warmer, warm, smooth)
    r = jnp.where(warmer, rows[1], rows[0])

    def newton(state):
        x, r, _, count = state
        active = pushing(r)
        slope = inertia @ (x - smooth) + (active * r) @ jacobian
        curvature = inertia + (jacobian.T * active) @ jacobian
        step = -jax.scipy.linalg.cho_solve(jax.scipy.linalg.cho_factor(curvature), slope)
        along = jacobian @ step
        pull = inertia @ step
        exact = jnp.all(active == pushing(r + along))  # the same rows push at the end of the whole step
        length = _step_length(r, along, stiffness, always, pull @ (x - smooth), pull @ step, searches)
        length = jnp.where(exact, 1.0, length)
        x, r = x + length * step, r + length * along
        tiny = jnp.max(jnp.abs(length * step)) <= 8 * jnp.finfo(x.dtype).eps * jnp.max(jnp.abs(x))
        return x, r, exact | tiny, count + 1

    def unfinished(state):
        _, _, done, count = state
        return ~done & (count < iterations)

    x, r, _, _ = jax.lax.while_loop(unfinished, newton, (x, r, jnp.array(False), jnp.array(0)))
    return x, -pushing(r) * r


def _step_length(r, along, stiffness, always, slope, curvature, searches: int) -> Array:
    """Root of the cost's derivative along a direction, which rises in linear pieces.

    Newton's method between two bounds; a step that leaves them is replaced by their middle.
    """
    length, low, high = jnp.ones_like(slope), jnp.zeros_like(slope), jnp.full_like(slope, jnp.inf)
    for _ in range(searches):
        there = r + length * along
        pushing = jnp.where(always | (there < 0), stiffness, 0.0) * along
        derivative = slope + length * curvature + jnp.sum(pushing * there)
        second = curvature + jnp.sum(pushing * along)
        low = jnp.where(derivative <= 0, length, low)
        high = jnp.where(derivative > 0, length, high)
        guess = length - derivative / jnp.maximum(second, jnp.finfo(second.dtype).tiny)
        inside = (guess >= low) & (guess <= high)
        length = jnp.where(inside, guess, jnp.where(jnp.isinf(high), 2.0 * length, 0.5 * (low + high)))
    return length


def _damped(model: mjx.Model, data: mjx.Data) -> Array:
    """Acceleration with joint damping taken at the end of the step, as MuJoCo's Euler integrator does.

    The factorisation here needs nothing but the inertia, and is made to wait for the forces all the same. On a CPU a
    batch of them is shared out among the threads that run the program: two at once, here and for the smooth
    acceleration, on as many cores wait for each other for ever (jaxlib 0.10).
    """
    if model.opt.disableflags & mjx.DisableBit.EULERDAMP:
        return data.qacc
    inertia = mjx.full_m(model, data) if mjx.is_sparse(model) else data._impl.M
    force = data.qfrc_smooth + data.qfrc_constraint
    damped = inertia + jnp.diag(model.opt.timestep * model.dof_damping) + 0.0 * force[0]
    return jax.scipy.linalg.cho_solve(jax.scipy.linalg.cho_factor(damped), force)


def _advance(model: mjx.Model, qpos: Array, shift: Array) -> Array:
    """`qpos` moved by a velocity times a duration; rotations turn by it."""
    parts, q, v = [], 0, 0
    for joint in model.jnt_type:
        if joint == mjx.JointType.FREE:
            parts += [qpos[q : q + 3] + shift[v : v + 3], _turn(qpos[q + 3 : q + 7], shift[v + 3 : v + 6])]
            q, v = q + 7, v + 6
        elif joint == mjx.JointType.BALL:
            parts.append(_turn(qpos[q : q + 4], shift[v : v + 3]))
            q, v = q + 4, v + 3
        else:
            parts.append(qpos[q : q + 1] + shift[v : v + 1])
            q, v = q + 1, v + 1
    return jnp.concatenate(parts)


def _turn(quat: Array, rotation: Array) -> Array:
    """Unit quaternion turned by a rotation vector in its own frame."""
    angle = jnp.linalg.norm(rotation)
    axis = rotation / jnp.maximum(angle, jnp.finfo(angle.dtype).tiny)
    w, xyz = jnp.cos(0.5 * angle), jnp.sin(0.5 * angle) * axis
    a, bcd = quat[0], quat[1:]
    turned = jnp.concatenate([(a * w - bcd @ xyz)[None], a * xyz + w * bcd + jnp.cross(bcd, xyz)])
    return turned / jnp.linalg.norm(turned)
