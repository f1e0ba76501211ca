"""From a recording to frames with an overlay, and from frames to MP4 and GIF files."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import mujoco
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from riskppo_jax.errors import UserError
from riskppo_jax.render.record import Recording
from riskppo_jax.render.scene import Scene, calm_forks, top_camera, tracking_camera

FPS = 30  # at most; slower physics gives its own rate
_BLUE, _ORANGE, _WHITE, _SHADE = (86, 180, 233), (230, 120, 0), (255, 255, 255), (0, 0, 0, 175)


def stride(recording: Recording) -> int:
    """Steps from one frame to the next, so that a film runs at the speed of the simulation."""
    return max(1, round(1.0 / (FPS * recording.dt)))


def film(recording: Recording, width: int = 640, height: int = 480, overlay: bool = True) -> Iterator[np.ndarray]:
    """Frames of a recording at the speed of the simulation, `uint8[height, width, 3]` each.

    Args:
      recording: what happened.
      width, height: in pixels; even, as video formats want.
      overlay: draw the constrained quantity against its threshold.
    """
    data = mujoco.MjData(recording.model)
    camera = tracking_camera(recording.model)
    with Scene(recording.model, width, height) as scene:
        for step in range(0, len(recording.reward), stride(recording)):
            recording.place(data, step)
            frame = scene.draw(data, camera)
            yield annotate(frame, recording, step) if overlay else frame


def views(recording: Recording, width: int = 640, height: int = 480) -> dict[str, np.ndarray]:
    """The first step from above (`top`) and from the camera that follows the robot (`track`)."""
    data = mujoco.MjData(recording.model)
    recording.place(data, 0)
    cameras = {"top": top_camera(recording.model, data), "track": tracking_camera(recording.model)}
    with Scene(recording.model, width, height) as scene:
        return {name: scene.draw(data, camera) for name, camera in cameras.items()}


def annotate(frame: np.ndarray, recording: Recording, step: int) -> np.ndarray:
    """The frame with each constrained quantity as a number, a gauge and the last two seconds as a curve."""
    image = Image.fromarray(frame).convert("RGBA")
    layer = Image.new("RGBA", image.size, (0, 0, 0, 0))
    draw = ImageDraw.Draw(layer)
    size = max(12, image.height // 30)
    font = ImageFont.load_default(size)
    same = recording.episode[: step + 1] == recording.episode[step]
    earned = float(recording.reward[: step + 1][same].sum())
    head = f"t = {same.sum() * recording.dt:5.2f} s   return {earned:7.1f}"
    draw.rectangle((0, 0, image.width, 2 * size), fill=_SHADE)
    draw.text((size, size // 2), head, font=font, fill=_WHITE)
    bottom = image.height
    for name, limit in recording.thresholds.items():
        if name not in recording.quantities:
            continue
        bottom -= 5 * size
        window = recording.quantities[name][max(0, step + 1 - round(2.0 / recording.dt)) : step + 1]
        _gauge(draw, (0, bottom, image.width, bottom + 5 * size), name, window, limit, font, size)
    return np.asarray(Image.alpha_composite(image, layer).convert("RGB"))


def _gauge(draw, box, name: str, window: np.ndarray, limit: float, font, size: int) -> None:
    left, top, right, bottom = box
    draw.rectangle(box, fill=_SHADE)
    now = float(window[-1])
    over = now > limit
    word = "above" if over else "within"
    color = _ORANGE if over else _BLUE
    draw.text((size, top + size // 2), f"{name} {now:.2f} ({word} {limit:g})", font=font, fill=color)
    low, high = min(0.0, 2.0 * limit, float(window.min())), max(2.0 * limit, float(window.max()), 1e-6)
    x0, x1, y0, y1 = left + size, right - size, top + 2 * size, bottom - size // 2

    def at(value: float) -> float:
        return y1 - (value - low) / (high - low) * (y1 - y0)

    for x in range(int(x0), int(x1), 12):  # a dashed line, readable without colour
        draw.line((x, at(limit), x + 6, at(limit)), fill=_WHITE)
    if len(window) > 1:
        xs = np.linspace(x1 - (x1 - x0) * min(1.0, len(window) / 60), x1, len(window))
        draw.line([(x, at(v)) for x, v in zip(xs, window, strict=True)], fill=color, width=max(2, size // 8))


def write_mp4(path: Path, frames: Sequence[np.ndarray], fps: float) -> Path:
    """H.264 that browsers play."""
    try:
        import imageio_ffmpeg
    except ImportError:
        raise UserError("render: MP4 files need imageio-ffmpeg; accepts an installed riskppo-jax[render]") from None
    height, width, _ = frames[0].shape
    # macro blocks of 2: even sizes stay as they are
    writer = imageio_ffmpeg.write_frames(
        str(path), (width, height), fps=fps, codec="libx264", quality=7, macro_block_size=2, ffmpeg_log_level="error"
    )
    with calm_forks():
        writer.send(None)
    for frame in frames:
        writer.send(np.ascontiguousarray(frame))
    writer.close()
    return path


def write_gif(path: Path, frames: Sequence[np.ndarray], fps: float, width: int = 320) -> Path:
    """A GIF of at most 15 frames a second and this width, looping."""
    every = max(1, round(fps / 15))
    images = []
    for frame in frames[::every]:
        image = Image.fromarray(frame)
        height = max(1, round(image.height * width / image.width))
        images.append(image.resize((width, height)).quantize(64, dither=Image.Dither.NONE))
    images[0].save(path, save_all=True, append_images=images[1:], duration=round(1000 * every / fps), loop=0)
    return path
