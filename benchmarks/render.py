"""Films without a display: a 10 s comparison of three versions, side by side, as MP4.

The motion is made up from a seed: somebody walks over a terrain of the family `ruins`, and the two
other versions are moved a little. Limit: 60 s of wall time on two cores without a GPU. The frames
alone are measured for each renderer, single-threaded, and MuJoCo's stands beside ours where EGL or
OSMesa works, with what it draws on.

    python benchmarks/render.py [--quick] [--seconds S]
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

from benchmarks._common import Row, parser, print_result, print_table
from parc_ray.character.character import load_character
from parc_ray.character.rotations import yaw_quat
from parc_ray.motion.clip import MotionClip
from parc_ray.motion.frames import MotionFrames
from parc_ray.terrain.generators import make_terrain
from parc_ray.terrain.spec import TerrainSpec
from parc_ray.viewer.offscreen.film import Film, pictures
from parc_ray.viewer.offscreen.opengl import OpenGLRenderer, find_library, use_library
from parc_ray.viewer.offscreen.software import SoftwareRenderer
from parc_ray.viewer.offscreen.versions import Version, film_of
from parc_ray.viewer.offscreen.video import write_mp4

SIZE, FPS, LIMIT_S = (1280, 480), 30.0, 60.0
SAMPLE = 20
"""Pictures of which the time per picture is taken."""


def made_motion(seconds: float, seed: int = 0) -> MotionClip:
    """Walking in a circle over uneven ground; 60 x 60 cells."""
    character = load_character("humanoid")
    spec = TerrainSpec(kind="ruins", cells=(60, 60))
    terrain = make_terrain(spec, np.random.default_rng(seed))
    count = round(seconds * FPS) + 1
    t = torch.arange(count) / FPS
    angle = 0.3 * t
    xy = 4.0 * torch.stack([torch.cos(angle), torch.sin(angle)], dim=-1)
    ground = terrain.height_at(xy)
    phase = torch.linspace(0.0, 6.0, character.skeleton.num_dofs)
    return MotionClip(
        clip_id="made",
        frames=MotionFrames(
            root_pos=torch.cat([xy, (ground + character.stand_height)[:, None]], dim=-1),
            root_rot=yaw_quat(angle + torch.pi / 2),
            dof=0.4 * torch.sin(6.0 * t[:, None] + phase),
            contacts=torch.zeros(count, character.skeleton.num_bodies),
        ),
        fps=FPS,
        terrain=terrain,
    )


def comparison(seconds: float) -> Film:
    """Three versions side by side."""
    clip = made_motion(seconds)
    moved = [
        replace(clip, frames=replace(clip.frames, root_pos=clip.frames.root_pos + dz))
        for dz in (torch.tensor([0.0, 0.0, 0.02]), torch.tensor([0.0, 0.05, 0.04]))
    ]
    versions = [
        Version(label=label, clip=c)
        for label, c in zip(("generated", "corrected", "recorded"), [clip, *moved], strict=True)
    ]
    return film_of(versions, load_character("humanoid"), size=SIZE, fps=FPS, title="made")


def cpu_of_all() -> float:
    """CPU seconds of this process and of those it has waited for."""
    now = os.times()
    return now.user + now.system + now.children_user + now.children_system


def per_picture(film: Film, make: type) -> tuple[float, float]:
    """Wall and CPU seconds of a picture of the film, over ``SAMPLE`` pictures."""
    times = film.times[:: max(1, len(film.times) // SAMPLE)][:SAMPLE]
    wall, cpu = time.perf_counter(), cpu_of_all()
    count = sum(1 for _ in pictures(film, make, times))
    return (time.perf_counter() - wall) / count, (cpu_of_all() - cpu) / count


def opengl_in_a_process(name: str, seconds: float) -> tuple[float, float]:
    """As `per_picture`, for MuJoCo's renderer, whose library is chosen when a process starts."""
    words = [sys.executable, __file__, "--opengl", name, "--seconds", str(seconds)]
    done = subprocess.run(
        words, check=True, capture_output=True, text=True, env={**os.environ, "MUJOCO_GL": name}
    )
    wall, cpu = done.stdout.splitlines()[-1].split()
    return float(wall), float(cpu)


def main() -> None:
    """Measure and print."""
    options = parser(__doc__)
    options.add_argument("--seconds", type=float, help="length of the film (10; quick: 2)")
    options.add_argument("--opengl", help="measure MuJoCo's renderer with this library, and end")
    args = options.parse_args()
    seconds = args.seconds or (2.0 if args.quick else 10.0)
    film = comparison(seconds)
    if args.opengl:
        use_library(args.opengl)
        print(*per_picture(film, OpenGLRenderer))
        return
    wall, cpu = time.perf_counter(), cpu_of_all()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "film.mp4"
        count = write_mp4(path, pictures(film, SoftwareRenderer, film.times), film.fps)
        size = path.stat().st_size
    wall, cpu = time.perf_counter() - wall, cpu_of_all() - cpu
    limit = LIMIT_S * seconds / 10.0
    one, one_cpu = per_picture(film, SoftwareRenderer)
    figures = {
        "mp4_wall_s": wall,
        "mp4_cpu_s": cpu,
        "film_s": seconds,
        "pictures": float(count),
        "mp4_bytes": float(size),
        "software_picture_s": one,
        "software_picture_cpu_s": one_cpu,
    }
    rows = [
        Row(
            name="MP4, wall",
            ours=wall,
            other=limit,
            label="limit",
            unit="s",
            note="two threads and the encoder",
        ),
        Row(
            name="MP4, half the CPU time of all processes",
            ours=cpu / 2,
            other=limit,
            label="limit",
            unit="CPU-s",
        ),
    ]
    library = find_library()
    if library is not None:
        gl, gl_cpu = opengl_in_a_process(library.name, seconds)
        figures |= {"opengl_picture_s": gl, "opengl_picture_cpu_s": gl_cpu}
        label = f"MuJoCo, {library.device}"
        rows.append(Row(name="one picture", ours=one_cpu, other=gl_cpu, label=label, unit="CPU-s"))
    print_table(f"{seconds:g} s, three versions, {SIZE[0]} x {SIZE[1]}, {FPS:g} fps", rows)
    print_result(figures)


if __name__ == "__main__":
    main()
