"""`riskppo render RUN`: a film of the trained policy; `riskppo render --random ENV`: a look at a task."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from riskppo_jax.errors import UserError

if TYPE_CHECKING:
    from riskppo_jax.render import Recording


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", type=Path, nargs="?", help="a run directory")
    parser.add_argument("--random", metavar="ENV", help="an untrained scene instead: two pictures and a short film")
    parser.add_argument("--out", metavar="DIR", type=Path, help="where to write (default: RUN/video, or .)")
    parser.add_argument("--seconds", type=float, metavar="S", help="simulated time to show (default: 8; 3 if random)")
    parser.add_argument("--size", default="640x480", metavar="WxH", help="of a frame (default: %(default)s)")
    parser.add_argument("--lane", type=int, metavar="I", help="which run of a sweep (default: the first)")
    parser.add_argument("--sampled", action="store_true", help="sampled actions in place of the mean action")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the world (default: %(default)s)")


def run(args: argparse.Namespace) -> int:
    import jax

    from riskppo_jax.render import find_backend, record
    from riskppo_jax.render.record import model_of, steps_for

    if (args.run is None) == (args.random is None):
        raise UserError("render accepts a run directory, or --random with the id of a task")
    width, height = _size(args.size)
    seconds = args.seconds if args.seconds is not None else (3.0 if args.random else 8.0)
    if not 0 <= args.seed < 2**32:
        raise UserError(f"--seed {args.seed}: accepts a whole number from 0 to {2**32 - 1}")
    if not 0 < seconds <= 600:
        raise UserError(f"--seconds {seconds:g}: accepts a time above 0 and up to 600")
    env, act, limits, noise, label = _scene(args)
    model_of(env)  # complains where there is nothing to draw
    print(f"drawing with {find_backend()}", flush=True)
    found = record(env, act, steps_for(env, seconds), jax.random.key(args.seed), limits, noise)
    out = args.out or (Path() if args.random else args.run / "video")
    out.mkdir(parents=True, exist_ok=True)
    written = _pictures(found, out, label, width, height) if args.random else []
    written += _films(found, out, label, width, height)
    print("written: " + ", ".join(str(path) for path in written))
    return 0


def _scene(args: argparse.Namespace):
    """Environment, policy, limits to show, action noise, and the stem of the files."""
    from riskppo_jax.envs.registry import make_env
    from riskppo_jax.render import policy_of, random_policy
    from riskppo_jax.render.record import limits_of
    from riskppo_jax.runs import restore_lane

    if args.random:
        env = make_env(args.random)
        return env, random_policy(env), None, None, args.random
    job, state = restore_lane(args.run, args.lane or 0)
    limits = limits_of(job.hypers.problem)
    name = "policy" if args.lane is None else f"policy_lane{args.lane}"
    return job.env, policy_of(job, state, not args.sampled), limits, job.hypers.noise, name


def _films(found: "Recording", out: Path, label: str, width: int, height: int) -> list[Path]:
    from riskppo_jax.render import film, write_gif, write_mp4
    from riskppo_jax.render.video import stride

    frames = list(film(found, width, height))
    fps = 1.0 / (found.dt * stride(found))
    return [write_mp4(out / f"{label}.mp4", frames, fps), write_gif(out / f"{label}.gif", frames, fps)]


def _pictures(found: "Recording", out: Path, label: str, width: int, height: int) -> list[Path]:
    from PIL import Image

    from riskppo_jax.render import views

    written = []
    for name, frame in views(found, width, height).items():
        written.append(out / f"{label}_{name}.png")
        Image.fromarray(frame).save(written[-1])
    return written


def _size(text: str) -> tuple[int, int]:
    parts = text.lower().split("x")
    if len(parts) != 2 or not all(part.isdigit() and 64 <= int(part) <= 4096 and not int(part) % 2 for part in parts):
        raise UserError(f"--size {text}: accepts WIDTHxHEIGHT in even pixels from 64 to 4096, such as 640x480")
    return int(parts[0]), int(parts[1])
