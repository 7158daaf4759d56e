"""Motions of the generator, corrected by every strategy: how many, at what cost, how good.

Takes kinematic motions from a data set (of the stage ``generate``, say), 3 to 6 s of each, and lets
MPC and, where policies are given, trackers correct them. The strategies are put together from
these passes, so nothing is corrected twice. Every finished pass over a motion is kept below
``--work``; started again with the same words, what is there is not done again.

    python benchmarks/correction_study.py --motions RUN/it_01/generate --work out

With ``--tracker RUN/it_01/train-tracker/best.pt`` the strategies tracker and tracker_then_mpc are
compared too, with ``--taught`` and a policy that MPC started, mpc_teacher.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from algorithms.ppo.policy import MlpPolicy
from benchmarks._common import print_result
from envs.sims.base import BackendFactory, SimConfig
from envs.sims.registry import backend_factory
from envs.tracking.config import TrackingConfig, preset
from parc_ray.character.character import Character, load_character
from parc_ray.cli import guarded
from parc_ray.correction.by_mpc import correct_by_mpc
from parc_ray.correction.config import CorrectionConfig
from parc_ray.correction.outcome import Outcome
from parc_ray.correction.strategies import (
    correct_by_tracker,
    judge,
    record_config,
    source_seed,
)
from parc_ray.data.store import load_dataset
from parc_ray.errors import InputError
from parc_ray.evaluation.metrics import clip_metrics
from parc_ray.motion.clip import MotionClip

QUALITY = ("tpl_per_frame", "tcl_per_frame", "foot_slide_mps", "hjf_frames_percent")
"""Figures before and after; TPL and TCL per frame, since recordings can be shorter."""


@dataclass(frozen=True, kw_only=True)
class Study:
    """What every pass needs."""

    character: Character
    factory: BackendFactory
    task: TrackingConfig
    config: CorrectionConfig
    seed: int


def options() -> argparse.Namespace:
    """The command line."""
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--motions", required=True, help="data set of kinematic motions")
    words.add_argument("--work", type=Path, required=True, help="where finished passes are kept")
    words.add_argument("--tracker", type=Path, help="policy for tracker and tracker_then_mpc")
    words.add_argument("--taught", type=Path, help="policy for mpc_teacher")
    words.add_argument("--task", default="quick", help="tracking preset of the policies")
    words.add_argument("--count", type=int, default=20, help="motions")
    words.add_argument("--shortest", type=float, default=3.0, help="shorter ones are left out, s")
    words.add_argument("--longest", type=float, default=6.0, help="what is used of longer ones, s")
    words.add_argument("--seed", type=int, default=0)
    words.add_argument("--report", action="store_true", help="only print what was done before")
    return words.parse_args()


def choose(
    clips: Sequence[MotionClip], count: int, shortest: float, longest: float
) -> list[MotionClip]:
    """Motions spread evenly over the data set, cut to ``longest`` seconds.

    Raises:
        InputError: there are fewer than ``count`` that are long enough.
    """
    long = sorted((c for c in clips if c.duration_s >= shortest - 1e-6), key=lambda c: c.clip_id)
    if len(long) < count:
        raise InputError(
            f"--motions: {len(long)} of {len(clips)} motions last {shortest:g} s or more, "
            f"{count} are wanted; lower --shortest or --count, or generate more"
        )
    chosen = [long[n * len(long) // count] for n in range(count)]
    return [
        replace(c, frames=c.frames.time(0, min(c.num_frames, round(longest * c.fps) + 1)))
        for c in chosen
    ]


def quality(clip: MotionClip, character: Character) -> dict[str, float]:
    """The figures of `QUALITY`."""
    found = clip_metrics(clip, character, "paper")
    found["tcl_per_frame"] = found["tcl"] / clip.num_frames
    return {name: found[name] for name in QUALITY}


class Passes:
    """Finished passes of one corrector, one file per motion."""

    def __init__(self, study: Study, folder: Path) -> None:
        """Use ``folder``, which is made."""
        self.study, self.folder = study, folder
        folder.mkdir(parents=True, exist_ok=True)

    def get(self, clip: MotionClip) -> dict[str, Any] | None:
        """The pass over a motion, if it is finished."""
        path = self.folder / f"{clip.clip_id}.json"
        return json.loads(path.read_text()) if path.exists() else None

    def put(self, outcome: Outcome) -> None:
        """Keep a pass: its record, and the quality of what it made."""
        record = outcome.record()
        if outcome.clip is not None:
            record["quality"] = quality(outcome.clip, self.study.character)
        path = self.folder / f"{outcome.source_id}.json"
        temporary = path.with_name(f".{path.name}.tmp")
        temporary.write_text(json.dumps(record))
        temporary.replace(path)


def by_mpc(study: Study, clips: Sequence[MotionClip], passes: Passes) -> None:
    """MPC over what is not finished."""
    for clip in clips:
        if passes.get(clip) is not None:
            continue
        seed = source_seed(study.seed, clip.clip_id)
        settings = record_config(study.config, seed)
        outcome = correct_by_mpc(
            study.character, study.factory, clip, study.config, study.task, settings, seed
        )
        judge(outcome, clip, study.character, study.config)
        passes.put(outcome)
        print(f"mpc {clip.clip_id}: {outcome.corrector or '; '.join(outcome.reasons)}", flush=True)


def by_tracker(policy: Path) -> Callable[[Study, Sequence[MotionClip], Passes], None]:
    """A policy over what is not finished, all at once."""

    def work(study: Study, clips: Sequence[MotionClip], passes: Passes) -> None:
        left = [clip for clip in clips if passes.get(clip) is None]
        if not left:
            return
        actor = MlpPolicy.load(policy)
        made = correct_by_tracker(
            study.character,
            study.factory,
            left,
            actor,
            study.config,
            study.task,
            study.seed,
            {"tracker": actor.digest},
        )
        for outcome in made:
            passes.put(outcome)

    return work


def rows_of(
    strategy: str, first: Passes, second: Passes | None, clips: Sequence[MotionClip]
) -> list[dict[str, Any]]:
    """One row per motion: ``first`` alone, or with ``second`` for what it does not do whole."""
    rows = []
    for clip in clips:
        one = first.get(clip)
        if one is None:
            continue
        chosen, cost = one, _cost(one)
        if second is not None and not one["whole"]:
            two = second.get(clip)
            if two is None:
                continue
            cost += _cost(two)
            chosen = max((one, two), key=_covered)
        before = quality(clip, first.study.character)
        after = chosen.get("quality", {})
        rows.append(
            {
                "strategy": strategy,
                "motion": clip.clip_id,
                "motion_s": clip.duration_s,
                "corrector": chosen["corrector"] or "none",
                "whole": chosen["whole"],
                "seconds": chosen["seconds"],
                "cpu_s": cost,
                "body_global_m": chosen["metrics"].get("body_global_m", math.nan),
                **{f"{name}_before": value for name, value in before.items()},
                **{f"{name}_after": after.get(name, math.nan) for name in QUALITY},
                "why": "; ".join(chosen["reasons"]),
            }
        )
    return rows


def _covered(record: dict[str, Any]) -> float:
    return record["seconds"] if record["clip_id"] else -1.0


def _cost(record: dict[str, Any]) -> float:
    return sum(a["cpu_s"] for a in record["attempts"])


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """One row per strategy; quality before is that of the motions that it corrected."""
    rows = []
    for strategy, mine in table.groupby("strategy", sort=False):
        kept = mine[mine["corrector"] != "none"]
        rows.append(
            {
                "strategy": strategy,
                "motions": len(mine),
                "corrected": len(kept) / len(mine),
                "whole": float(mine["whole"].mean()),
                "seconds_share": mine["seconds"].sum() / mine["motion_s"].sum(),
                "cpu_s_per_motion_s": mine["cpu_s"].sum() / mine["motion_s"].sum(),
                "body_global_m": kept["body_global_m"].mean(),
                **{
                    f"{name}_{when}": kept[f"{name}_{when}"].mean()
                    for name in QUALITY
                    for when in ("before", "after")
                },
            }
        )
    return pd.DataFrame(rows)


def main() -> None:
    """Correct what is not done yet, then show everything."""
    args = options()
    torch.set_num_threads(1)
    character = load_character("humanoid")
    study = Study(
        character=character,
        factory=backend_factory("mujoco_cpu", character, SimConfig()),
        task=preset(args.task),
        config=CorrectionConfig(),
        seed=args.seed,
    )
    _, motions = load_dataset(args.motions)
    clips = choose(motions, args.count, args.shortest, args.longest)
    mpc = Passes(study, args.work / "mpc")
    plans: list[tuple[str, Passes, Passes | None]] = [("mpc", mpc, None)]
    work = [(by_mpc, mpc)]
    for name, policy in (("tracker", args.tracker), ("mpc_teacher", args.taught)):
        if policy is None:
            continue
        passes = Passes(study, args.work / name)
        work.insert(0, (by_tracker(policy), passes))
        if name == "tracker":
            plans.append((name, passes, None))
        plans.append(("tracker_then_mpc" if name == "tracker" else name, passes, mpc))
    if not args.report:
        for correct, passes in work:
            correct(study, clips, passes)
    rows = [row for name, one, two in plans for row in rows_of(name, one, two, clips)]
    if not rows:
        raise InputError(f"{args.work}: nothing was done yet; leave --report out")
    table = pd.DataFrame(rows)
    table.to_csv(args.work / "motions.csv", index=False)
    shown = summary(table)
    shown.to_csv(args.work / "strategies.csv", index=False)
    print(shown.round(3).T.to_string(header=False))
    figures = {
        f"{row['strategy']}_{name}": float(row[name])
        for row in shown.to_dict("records")
        for name in ("corrected", "whole", "cpu_s_per_motion_s")
    }
    print_result(figures)


if __name__ == "__main__":
    raise SystemExit(guarded(main))
