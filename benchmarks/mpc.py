"""MPC on PARC's motion capture: how many clips it corrects to their end, how closely, at what cost.

Every clip is imported with the terrain that its contacts ask for, cut to its first seconds, and
corrected under PARC's termination rules with all retries. One row per clip goes to ``clips.csv`` as
soon as it is done; started again with the same words, what is there is not done again. The clips
are not part of this project: ``--data`` names a directory of PARC or MimicKit files.

    python benchmarks/mpc.py --work runs/mpc
    python benchmarks/mpc.py --quick
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks._common import Row, parser, print_result, print_table
from benchmarks._study import write_result, write_text
from envs.sims.base import SimConfig
from envs.sims.registry import backend_factory
from envs.tracking.config import preset
from parc_ray.character.character import Character, load_character
from parc_ray.cli import guarded
from parc_ray.config import DataConfig
from parc_ray.config_io import from_plain, to_plain
from parc_ray.correction.by_mpc import correct_by_mpc
from parc_ray.correction.config import CorrectionConfig
from parc_ray.correction.strategies import judge, record_config, source_seed
from parc_ray.correction.tables import clip_table
from parc_ray.data.storage import Storage
from parc_ray.data.store import write_part
from parc_ray.errors import InputError
from parc_ray.evaluation.metrics import clip_metrics
from parc_ray.motion.clip import MotionClip
from parc_ray.stages._initial import import_source

CELL_SIZE = 0.2
"""Cells of the inferred terrain, m."""
QUICK = ("run30", "platform17")
QUICK_S = 1.5
"""Clips of ``--quick``, and their longest duration, s."""
CLIMB_M = 0.9
"""A clip whose root rises or falls by more than this climbs, m."""
FLAT_M = 0.1
"""A clip whose terrain varies by less than this under its path is flat, m."""
LIMITS = {"completed_share": 0.6, "error_m": 0.20, "error_flat_m": 0.15, "error_climb_m": 0.25}
LIMITS |= {"cpu_s_per_motion_s": 25.0, "hjf_excess_points": 2.0}
"""The limits that were set."""


def default_data() -> Path:
    """Where the development data is."""
    shared = os.environ.get("PARC_SHARED_DATA")
    root = Path(shared) if shared else Path(__file__).resolve().parents[2] / "shared" / "data"
    return root / "parc_clips"


def options() -> argparse.Namespace:
    """The command line."""
    words = parser(__doc__ or "")
    words.add_argument("--data", type=Path, default=default_data(), help="directory of clips")
    words.add_argument("--work", type=Path, help="where rows are kept; a new place by default")
    words.add_argument("--takes", nargs="*", help="names of files to use; all by default")
    words.add_argument("--seconds", type=float, default=5.0, help="what is used of each clip")
    words.add_argument("--seed", type=int, default=0)
    words.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="correction.KEY")
    words.add_argument("--report", action="store_true", help="only print what was done before")
    words.add_argument("--page", type=Path, help="directory for the table and a page about it")
    return words.parse_args()


def changed(config: CorrectionConfig, changes: list[str]) -> CorrectionConfig:
    """Settings with values changed by dotted key."""
    plain = to_plain(config)
    for change in changes:
        key, _, value = change.partition("=")
        *parents, leaf = key.split(".")
        node = plain
        for parent in parents:
            node = node.get(parent, {})
        if leaf not in node:
            raise InputError(f"--set {key}: no such setting of the correction")
        node[leaf] = json.loads(value)
    return from_plain(CorrectionConfig, plain)


def take_files(data: Path, takes: list[str] | None) -> dict[str, Path]:
    """Files by name without ``humanoid_``, shortest names and numbers first."""
    found = {p.stem.removeprefix("humanoid_"): p for p in sorted(data.glob("*.pkl"))}
    wanted = takes or sorted(found)
    missing = [t for t in wanted if t not in found]
    if missing or not wanted:
        raise InputError(
            f"{data}: has no clips {', '.join(missing)}; give --data a directory with "
            f"humanoid_NAME.pkl files, and --takes some of: {', '.join(found) or 'none are there'}"
        )
    return {t: found[t] for t in wanted}


def load_clip(file: Path, character: Character, seconds: float) -> MotionClip:
    """One clip with its inferred terrain, cut to its first seconds."""
    data = replace(DataConfig(), path=str(file), cell_size=CELL_SIZE)
    clip = import_source(data, character)[0][0]
    last = min(clip.num_frames, round(seconds * clip.fps) + 1)
    return replace(clip, frames=clip.frames.time(0, last))


def kind_of(clip: MotionClip) -> str:
    """flat, climb (by the height that the root gains or loses) or terrain."""
    root = clip.frames.root_pos
    ground = clip.terrain.height_at(root[:, :2])
    if float(ground.max() - ground.min()) < FLAT_M:
        return "flat"
    supported = float(root[:, 2].max() - root[:, 2].min()) > CLIMB_M
    return "climb" if supported else "terrain"


def run_clip(
    take: str, clip: MotionClip, character: Character, config: CorrectionConfig, seed: int
) -> tuple[dict[str, Any], list[MotionClip]]:
    """Correct one clip; its row and what was recorded."""
    began, wall = time.process_time(), time.monotonic()
    seed_of_clip = source_seed(seed, take)
    outcome = correct_by_mpc(
        character,
        backend_factory("mujoco_cpu", character, SimConfig()),
        clip,
        config,
        preset("quick"),
        record_config(config, seed_of_clip),
        seed_of_clip,
    )
    cpu_s = time.process_time() - began
    whole, end = outcome.whole, outcome.end_frame
    judge(outcome, clip, character, config)
    row = clip_table([outcome]).to_dict("records")[0]
    reference = clip_metrics(clip, character, "paper")
    wanted = clip.num_frames - 1
    reached = max(a.frames for a in outcome.attempts)
    return {
        "take": take,
        "kind": kind_of(clip),
        "motion_s": clip.duration_s,
        "completed": whole,
        "reached_share": reached / wanted,
        "kept_frames": end if outcome.clips() else 0,
        "accepted": outcome.clip is not None,
        "cpu_s_per_motion_s": cpu_s / clip.duration_s,
        "wall_s": time.monotonic() - wall,
        "reference_hjf_percent": reference["hjf_frames_percent"],
        "reference_slide_mps": reference["foot_slide_mps"],
        "attempt_reasons": "; ".join(f"{a.failed_frame}: {a.reason}" for a in outcome.attempts),
        **{k: v for k, v in row.items() if k not in ("source", "recording")},
        "cpu_s": cpu_s,
        "seed": seed,
    }, outcome.clips()


def figures(table: pd.DataFrame) -> dict[str, float]:
    """What the limits are of, from the rows of ``clips.csv``."""
    done = table[table["completed"]]
    excess = done["hjf_frames_percent"] - done["reference_hjf_percent"]

    def error(kind: str) -> float:
        chosen = done[done["kind"] == kind]["body_global_m"]
        return float(chosen.mean()) if len(chosen) else math.nan

    close = table[table["body_global_m"] <= 0.15]
    return {
        "clips": float(len(table)),
        "completed_share": float(table["completed"].mean()),
        "reached_share": float(table["reached_share"].mean()),
        "error_m": float(done["body_global_m"].mean()),
        "error_flat_m": error("flat"),
        "error_climb_m": error("climb"),
        "error_terrain_m": error("terrain"),
        "cpu_s_per_motion_s": float(table["cpu_s"].sum() / table["motion_s"].sum()),
        "hjf_percent": float(done["hjf_frames_percent"].mean()),
        "hjf_excess_points": float(excess.mean()),
        "hjf_excess_points_max": float(excess.max()),
        "accepted_share_below_15_cm": float(close["accepted"].mean()) if len(close) else math.nan,
    }


def show(table: pd.DataFrame) -> None:
    """Print the rows, the figures beside their limits, and the JSON line."""
    names = ["take", "kind", "motion_s", "completed", "reached_share", "body_global_m"]
    names += ["hjf_frames_percent", "reference_hjf_percent", "cpu_s_per_motion_s", "rewinds"]
    print(table[names].round(3).to_string(index=False))
    found = figures(table)
    rows = [
        Row(name=name, ours=value, other=LIMITS.get(name), label="limit" if name in LIMITS else "")
        for name, value in found.items()
    ]
    print_table(f"MPC on {len(table)} clips, one thread", rows)
    print_result({f"mpc_{name}": value for name, value in found.items() if value == value})


def page(table: pd.DataFrame, seconds: float, wanted: int) -> str:
    """The rows and the figures beside their limits, as Markdown."""
    lines = [
        "# MPC on real clips",
        "",
        f"{len(table)} of {wanted} clips, first {seconds:g} s of each, terrain inferred in cells "
        f"of {CELL_SIZE:g} m, PARC's termination rules, all retries counted, one thread. By",
        "`benchmarks/mpc.py`; all columns: [mpc_clips.csv](mpc_clips.csv).",
        "",
        "| figure | measured | limit |",
        "|---|---|---|",
    ]
    for name, value in figures(table).items():
        limit = f"{LIMITS[name]:g}" if name in LIMITS else ""
        lines.append(f"| {name} | {'' if math.isnan(value) else f'{value:.3g}'} | {limit} |")
    names = ("take", "kind", "motion_s", "completed", "reached_share", "body_global_m")
    names += ("hjf_frames_percent", "reference_hjf_percent", "cpu_s_per_motion_s", "rewinds")
    lines += ["", f"| {' | '.join(names)} | ended |", "|" + "---|" * (len(names) + 1)]
    for row in table.to_dict("records"):
        cells = [f"{v:.3g}" if isinstance(v, float) else str(v) for v in (row[n] for n in names)]
        why = "" if row["completed"] else row["attempt_reasons"]
        lines.append(f"| {' | '.join(cells)} | {why} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Correct what is not done yet, then show everything."""
    args = options()
    seconds = min(args.seconds, QUICK_S) if args.quick else args.seconds
    torch.set_num_threads(1)
    work = args.work or Path(tempfile.mkdtemp(prefix="mpc-"))
    rows = work / "rows"
    rows.mkdir(parents=True, exist_ok=True)
    files = take_files(args.data, args.takes or (list(QUICK) if args.quick else None))
    config = changed(CorrectionConfig(), args.set)
    words = {"seconds": seconds, "seed": args.seed, "correction": to_plain(config)}
    _same_words(work / "settings.json", words)
    character = load_character("humanoid")
    for take, file in files.items():
        if args.report or (rows / f"{take}.json").exists():
            continue
        clip = load_clip(file, character, seconds)
        row, made = run_clip(take, clip, character, config, args.seed)
        if made:
            write_part(Storage.from_uri(work), f"{take}.parquet", made)
        write_result(rows, take, row)
        print(f"{take}: {'completed' if row['completed'] else row['attempt_reasons']}", flush=True)
    found = [json.loads(p.read_text()) for t in files if (p := rows / f"{t}.json").exists()]
    if not found:
        raise InputError(f"{work}: nothing was done yet; leave --report out")
    table = pd.DataFrame(found).sort_values("take")
    write_text(work / "clips.csv", table.to_csv(index=False))
    if args.page is not None:
        args.page.mkdir(parents=True, exist_ok=True)
        write_text(args.page / "mpc_clips.csv", table.to_csv(index=False))
        write_text(args.page / "mpc.md", page(table, seconds, len(files)))
    show(table)


def _same_words(path: Path, words: dict[str, Any]) -> None:
    """Remember the settings; refuse to mix rows of different ones."""
    if path.exists():
        if json.loads(path.read_text()) != json.loads(json.dumps(words)):
            raise InputError(f"{path}: rows of other settings are here; give another --work")
        return
    write_text(path, json.dumps(words, indent=1))


if __name__ == "__main__":
    raise SystemExit(guarded(main))
