"""Where things stand at the start: the benchmark's rule, as a loop that compiles.

Objects are placed one after another, robot first. Each draws positions in its rectangle until one keeps its distance
from everything placed before; after 100 misses the whole layout is thrown away. A goal that moves is then drawn once
more against all the others, by the same routine that draws the next one when it is reached. Positions are drawn ten
at a time and the first good one is taken, which is the same as one by one.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from riskppo_jax.envs.navigation import bank
from riskppo_jax.envs.navigation.bank import BLOCK, TRIES
from riskppo_jax.envs.navigation.tables import Task
from riskppo_jax.errors import UserError
from riskppo_jax.types import Array, Key

GOAL_BLOCKS = 1000  # the original gives up on a new goal after 10000 draws
EASY = 100  # mean draws of a layout up to which it is drawn at each reset, rather than taken from a bank
_LIMIT = 4_000  # blocks after which a world that cannot be drawn is given up
_PROBES = 32
_HARD = ("Button",)  # thousands of draws for one layout


class Plan(NamedTuple):
    """What is to be placed: one row for each object, robot first."""

    names: tuple[str, ...]
    low: np.ndarray  # [object, 2]
    span: np.ndarray  # [object, 2]
    keepout: np.ndarray  # [object]
    goal: int  # which of them is drawn again, or -1


def plan(task: Task) -> Plan:
    """The placement of a task."""
    rows = [("agent", task.extent, task.robot_keepout)]
    for kind in task.kinds:
        extent = 0.0 if kind.role == "mark" else task.extent
        rows += [(name, extent, kind.keepout) for name in kind.names]
    names, extents, keepouts = zip(*rows, strict=True)
    reach = np.maximum(np.array(extents) - np.array(keepouts), 0.0)[:, None] * np.ones(2)
    moves = task.name != "Button" and "goal" in names
    return Plan(names, -reach, 2 * reach, np.array(keepouts), names.index("goal") if moves else -1)


def draw(plan: Plan, key: Key, where: Array | bool = True, limit: int = _LIMIT) -> tuple[Array, Array, Array]:
    """Positions `[object, 2]`, the goal drawn again `[2]`, and how many blocks of draws it took.

    Positions are NaN where `limit` blocks were not enough, and arbitrary where `where` is False.
    """
    low, span, keepout = (jnp.asarray(x, float) for x in (plan.low, plan.span, plan.keepout))
    count = len(plan.names)
    if not plan.keepout.any():  # nothing keeps a distance
        xy = low + span * jax.random.uniform(key, (count, 2))
        return xy, xy[plan.goal], jnp.ones((), jnp.int32)
    last = count + (plan.goal >= 0)
    order = jnp.arange(count)

    def unfinished(state):
        _, i, _, _, _, blocks = state
        return (i < last) & (blocks < limit)

    def place(state):
        key, i, tries, xy, goal, blocks = state
        key, key_draw = jax.random.split(key)
        at = jnp.where(i < count, i, plan.goal)
        drawn = low[at] + span[at] * jax.random.uniform(key_draw, (BLOCK, 2))
        absent = (order >= i) | (order == at)
        hit, pick = _first_good(drawn, xy, keepout + keepout[at], absent)
        xy = jnp.where((hit & (order == i))[:, None], pick, xy)
        goal = jnp.where(hit & (i == count), pick, goal)
        tries = jnp.where(hit, 0, tries + BLOCK)
        again = (tries >= TRIES) & (i < count)
        i = jnp.where(hit, i + 1, jnp.where(again, 0, i))
        return key, i, jnp.where(again, 0, tries), xy, goal, blocks + 1

    start = jnp.where(where, 0, last)
    state = (key, start, jnp.zeros_like(start), jnp.zeros((count, 2)), jnp.zeros(2), jnp.zeros_like(start))
    _, i, _, xy, goal, blocks = jax.lax.while_loop(unfinished, place, state)
    xy = jnp.where(i < last, jnp.nan, xy)
    return xy, jnp.where(plan.goal >= 0, goal, xy[plan.goal]), blocks


def draw_goal(plan: Plan, key: Key, xy: Array, where: Array | bool = True) -> tuple[Array, Array]:
    """A new goal among objects at `xy`, and whether one was found."""
    at = plan.goal
    low, span, keepout = (jnp.asarray(x, float) for x in (plan.low, plan.span, plan.keepout))
    itself = jnp.arange(len(plan.names)) == at

    def unfinished(state):
        _, found, _, blocks = state
        return ~found & (blocks < GOAL_BLOCKS)

    def search(state):
        key, _, _, blocks = state
        key, key_draw = jax.random.split(key)
        drawn = low[at] + span[at] * jax.random.uniform(key_draw, (BLOCK, 2))
        hit, pick = _first_good(drawn, xy, keepout + keepout[at], itself)
        return key, hit, pick, blocks + 1

    state = (key, ~jnp.asarray(where), xy[at], jnp.zeros((), jnp.int32))
    _, found, goal, _ = jax.lax.while_loop(unfinished, search, state)
    return goal, found


class Layouts:
    """Start layouts of one task: drawn at each reset where that is quick, from a bank where it is not.

    A bank holds layouts drawn beforehand by the same rule. The rule does not know left from right, so each of them
    stands for eight: turned by right angles and mirrored.
    """

    def __init__(self, task: Task, usual: bool = True, needed: bool = True):
        """Prepares the layouts of a task.

        Args:
          usual: the task has its own numbers of objects; otherwise it is tried out how hard they are to place.
          needed: False if layouts will not be drawn, only goals.
        """
        self.plan = plan(task)
        self._hard = needed and (task.name in _HARD if usual else self._probe(task) > EASY)

    def draw(self, key: Key, where: Array | bool = True) -> tuple[Array, Array]:
        """Positions `[object, 2]` in the plan's order, and the goal."""
        if not self._hard:
            xy, goal, _ = draw(self.plan, key, where)
            return xy, goal
        key_row, key_turn = jax.random.split(key)
        rows = jnp.asarray(bank.load(self.plan), float)
        row = rows[jax.random.randint(key_row, (), 0, len(rows))]
        swap, *signs = jax.random.bernoulli(key_turn, shape=(3,))
        row = jnp.where(swap, row[:, ::-1], row) * jnp.where(jnp.stack(signs), 1.0, -1.0)
        return row[:-1], row[-1]

    def _probe(self, task: Task) -> float:
        """Mean number of draws of a layout; complains if there is none, or hardly any."""
        rows, blocks = bank.sample(self.plan, _PROBES, 0, _LIMIT)
        found = np.isfinite(rows).all(axis=(1, 2))
        if found.mean() < 0.5:
            counts = ", ".join(f"{kind.name}={kind.count}" for kind in task.kinds)
            raise UserError(
                f"{counts}: no layout found for these in {_LIMIT * BLOCK} draws, {_PROBES} times; "
                f"{task.name} level {task.level} accepts fewer objects"
            )
        return float(blocks.mean() * BLOCK)


def fixed(task: Task, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The layout of a seed, the same at every reset: positions and goal."""
    rows, _ = bank.sample(plan(task), 1, seed)
    if not np.isfinite(rows).all():
        raise UserError(f"layout_seed={seed}: no layout found; layout_seed accepts other numbers, or fewer objects")
    return rows[0, :-1], rows[0, -1]


def _first_good(drawn: Array, xy: Array, apart: Array, absent: Array) -> tuple[Array, Array]:
    """Whether one of the positions keeps `apart` from all objects that are not `absent`, and the first that does."""
    gap = jnp.sum((drawn[:, None] - xy) ** 2, axis=-1)
    good = jnp.all(absent | (gap >= apart**2), axis=1)
    return jnp.any(good), drawn[jnp.argmax(good)]
