"""Button: press the one of four buttons that carries the goal; then another, or the same, carries it."""

import jax
import jax.numpy as jnp

from riskppo_jax.envs.navigation.tables import TIMER
from riskppo_jax.envs.navigation.view import View
from riskppo_jax.types import Array, Key

Memory = dict[str, Array]


def remember(view: View, target: Array, timer: Array) -> Memory:
    """Which button is wanted, its distance, and for how many steps the others are out of play."""
    return {"last": view.distance("buttons")[target], "target": target, "timer": timer}


def judge(view: View, memory: Memory) -> tuple[Array, Array]:
    """Reward for coming nearer, with 1 more for pressing, and whether the button is pressed."""
    pressed = view.touched["buttons"][memory["target"]]
    nearer = memory["last"] - view.distance("buttons")[memory["target"]]
    return nearer + jnp.where(pressed, 1.0, 0.0), pressed


def wrong(view: View, memory: Memory) -> Array:
    """Number of other buttons touched, 0 while they are out of play."""
    return jnp.sum((view.touched["buttons"] & others(view, memory)).astype(view.sensors.dtype))


def others(view: View, memory: Memory) -> Array:
    """Which buttons are not to be touched: all but the wanted one, none while they are out of play."""
    return (jnp.arange(len(view.places["buttons"])) != memory["target"]) & (memory["timer"] <= 0)


def tick(memory: Memory) -> Memory:
    return {**memory, "timer": jnp.maximum(memory["timer"] - 1, 0)}


def renew(view: View, key: Key) -> Memory:
    """Memory after a press: any of the buttons, the pressed one included."""
    target = jax.random.randint(key, (), 0, len(view.places["buttons"]), jnp.int32)
    return remember(view, target, jnp.full_like(target, TIMER))
