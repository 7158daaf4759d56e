"""How fast the viewer opens a data set and makes pictures, against the project's limits.

The browser's part is not in these figures: it draws on the machine that it runs on.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from benchmarks._common import Row, _cpu_time, cpu_s, parser, print_result, print_table
from parc_ray.character.character import Character, load_character
from parc_ray.data.store import save_dataset
from parc_ray.motion.clip import MotionClip, Provenance
from parc_ray.motion.frames import MotionFrames
from parc_ray.terrain.heightfield import Heightfield
from parc_ray.viewer.catalog import open_catalog
from parc_ray.viewer.server import free_port
from parc_ray.viewer.session import Session

ROOT = Path(__file__).resolve().parent.parent
OPEN_LIMIT_S = 5.0
FRAME_LIMIT_HZ = 20.0
FIGURES = 16
FRAMES = 150
PICTURES = 80
_CLIENT = """
import sys
from websockets.sync.client import connect
with connect(sys.argv[1], subprotocols=[sys.argv[2]], max_size=None) as socket:
    print("connected", flush=True)
    for message in socket:
        pass
"""


def main() -> None:
    """Measure and print."""
    options = parser(__doc__ or "")
    options.add_argument("--clips", type=int, default=1000, help="(%(default)s)")
    arguments = options.parse_args()
    torch.set_num_threads(1)
    character = load_character()
    with tempfile.TemporaryDirectory() as folder:
        save_dataset(folder, "many", make_clips(character, arguments.clips), character.digest)
        figures = measure(folder, character, arguments.clips)
    rows = [
        Row(
            name=f"open {arguments.clips} clips, first one shown",
            ours=figures["view_open_s"],
            other=OPEN_LIMIT_S,
            label="limit",
            unit="s",
            note="wall time, imports apart",
        ),
        Row(
            name=f"parc view with {arguments.clips} clips, until it serves",
            ours=figures["view_command_cpu_s"],
            other=OPEN_LIMIT_S,
            label="limit",
            unit="s",
            note="CPU time of the whole command, imports and all",
        ),
        Row(
            name=f"scrub, {FIGURES} characters, sent to a client",
            ours=figures["view_scrub_hz"],
            other=FRAME_LIMIT_HZ,
            label="limit, more is better",
            unit="1/s",
            note="of the server's CPU time, one thread",
        ),
        Row(
            name="the same, without viser",
            ours=figures["view_scene_hz"],
            other=FRAME_LIMIT_HZ,
            label="limit, more is better",
            unit="1/s",
            note="CPU time",
        ),
        Row(
            name=f"first look at {FIGURES} clips, colours of penetration",
            ours=figures["view_first_look_s"],
            unit="s",
            note=f"CPU time, {FRAMES} frames each, once",
        ),
    ]
    print_table("Viewer", rows)
    print_result(figures)


def make_clips(character: Character, count: int) -> list[MotionClip]:
    """Clips of five seconds over boxes, from a fixed seed."""
    rng = torch.Generator().manual_seed(0)
    dofs, bodies = character.skeleton.num_dofs, character.skeleton.num_bodies
    t = torch.arange(FRAMES) / 30.0
    clips = []
    for number in range(count):
        phase = torch.rand(dofs, generator=rng) * 6.0
        root = torch.stack((t - 2.5, 0 * t, 0 * t + character.stand_height), -1)
        rotation = torch.zeros(FRAMES, 4)
        rotation[:, 3] = 1.0
        frames = MotionFrames(
            root_pos=root,
            root_rot=rotation,
            dof=0.3 * torch.sin(3.0 * t[:, None] + phase),
            contacts=(torch.rand(FRAMES, bodies, generator=rng) > 0.8).float(),
        )
        heights = 0.1 * torch.randint(0, 3, (24, 16), generator=rng).float()
        ground = Heightfield(heights=heights, origin=torch.tensor([-4.6, -3.0]))
        made = Provenance(maker="generate", iteration=number % 3, class_name=f"class{number % 7}")
        clips.append(
            MotionClip(
                clip_id=f"clip{number:05d}",
                frames=frames,
                fps=30.0,
                terrain=ground,
                provenance=made,
                metrics={f"figure{k}": float(number * k) for k in range(20)},
            )
        )
    return clips


def measure(folder: str, character: Character, count: int) -> dict[str, float]:
    """All figures on the data set in ``folder``."""
    began = time.perf_counter()
    session = Session(catalog=open_catalog(folder, character))
    keys = list(session.catalog.entries)
    session.select(keys[0])
    session.filter = replace(session.filter, sort="figure3", descending=True)
    listed = session.listed()
    opened = time.perf_counter() - began
    assert len(listed) == count
    session.set_tint("penetration")
    before = time.process_time()
    session.show(keys[:FIGURES], "side by side")
    session.scene.batches(0.0)
    first = time.process_time() - before
    place = iter(range(10**9))
    scene = cpu_s(lambda: session.scene.batches(next(place) % FRAMES / 30.0))
    return {
        "view_open_s": opened,
        "view_first_look_s": first,
        "view_command_cpu_s": whole_command(folder),
        "view_scene_hz": 1.0 / scene,
        "view_scrub_hz": 1.0 / through_server(session),
    }


def whole_command(folder: str) -> float:
    """CPU seconds from the start of ``parc view`` until the page is served, imports and all."""
    words = [sys.executable, "-m", "parc_ray.cli", "view", folder, "--port", "0"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("Ctrl-C"):
                return _cpu_time(process.pid)
        raise RuntimeError("parc view ended before it served a page")
    finally:
        process.kill()
        process.wait()


def through_server(session: Session) -> float:
    """CPU seconds of one picture, made and sent to a client at the limit's rate.

    The client is a process of its own that reads everything. viser leaves out what is out of date
    when it sends, so pictures are paced as in a playback.
    """
    import viser

    from parc_ray.viewer.canvas import Canvas

    port = free_port("127.0.0.1", 0)
    server = viser.ViserServer(host="127.0.0.1", port=port, verbose=False)
    canvas = Canvas(server)
    canvas.show_samples = True
    canvas.rebuild(session.scene)
    words = [sys.executable, "-c", _CLIENT, f"ws://127.0.0.1:{port}", f"viser-v{viser.__version__}"]
    client = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        assert client.stdout is not None
        assert client.stdout.readline().strip() == "connected"
        time.sleep(1.0)
        began = time.process_time()
        due = time.monotonic()
        for number in range(PICTURES):
            canvas.draw(session.scene, number % FRAMES / 30.0)
            server.flush()
            due += 1.0 / FRAME_LIMIT_HZ
            time.sleep(max(0.0, due - time.monotonic()))
        return (time.process_time() - began) / PICTURES
    finally:
        client.kill()
        client.wait()
        server.stop()


if __name__ == "__main__":
    main()
