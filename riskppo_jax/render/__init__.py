"""Pictures of a policy at work: recorded episodes, off-screen frames, MP4 and GIF, and a replay for a web page."""

from riskppo_jax.render.record import Recording, policy_of, random_policy, record
from riskppo_jax.render.scene import Scene, find_backend
from riskppo_jax.render.video import film, views, write_gif, write_mp4

__all__ = [
    "Recording",
    "Scene",
    "film",
    "find_backend",
    "policy_of",
    "random_policy",
    "record",
    "views",
    "write_gif",
    "write_mp4",
]
