"""What a renderer needs: the poses of everything that is drawn.

The physics knows nothing of goals, hazards and walls. The scene model has them too, as mocap bodies, and the same
`qpos` as the physics model; `pose` fills both from a state.
"""

from typing import Any

import numpy as np

from riskppo_jax.envs.base import State


def pose(env: Any, state: State) -> dict[str, np.ndarray]:
    """`qpos`, `mocap_pos` and `mocap_quat` of the scene of one world, in float64.

    Args:
      env: a `Navigation`.
      state: of one world, without leading axes.
    """
    world = state.sim
    qpos, mocap = env.engine.poses(world.carry)
    layout = np.asarray(world.layout, np.float64)
    positions, turns, row = [mocap[:, :3]], [mocap[:, 3:]], 0
    for kind in env.task.kinds:
        spots = layout[row : row + kind.count]
        row += kind.count
        if kind.role not in ("goal", "zone"):
            continue
        if kind.name == "goal" and env.task.name == "Button":
            spots = _buttons(env, layout)[int(world.memory["target"])][None]
        positions.append(np.column_stack([spots, np.full(kind.count, kind.shape.height)]))
        turns.append(np.tile([1.0, 0.0, 0.0, 0.0], (kind.count, 1)))
    return {"qpos": qpos, "mocap_pos": np.concatenate(positions), "mocap_quat": np.concatenate(turns)}


def _buttons(env: Any, layout: np.ndarray) -> np.ndarray:
    start = 0
    for kind in env.task.kinds:
        if kind.name == "buttons":
            return layout[start : start + kind.count]
        start += kind.count
    raise KeyError("buttons")
