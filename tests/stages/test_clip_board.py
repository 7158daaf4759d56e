"""The per-clip board: rows by hand-made episodes, tests that are repeated, curves, the picture."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd
import pytest
import torch

from envs.tracking.rollouts import ERRORS, Episodes
from envs.tracking.task import REASONS
from parc_ray.data.storage import Storage
from parc_ray.stages._clip_board import PICTURE, TABLE, ClipBoard, picture
from tests.envs.helpers import stand_clip, stand_state, sway_clip


@dataclass
class Scalars:
    seen: dict[int, dict[str, float]] = field(default_factory=dict)

    def add_all(self, values, step) -> None:
        self.seen[step] = dict(values)


@dataclass
class Run:
    dir: Storage
    scalars: Scalars = field(default_factory=Scalars)


def episodes(character, steps: list[int]) -> Episodes:
    """Two episodes of 30 steps on each of two clips, which last ``steps``."""
    count = torch.tensor(steps)
    done = count == 30
    root = REASONS.index("root_pos")
    return Episodes(
        clip=torch.tensor([0, 0, 1, 1]),
        start=torch.zeros(4, dtype=torch.long),
        steps=count,
        remaining=torch.full((4,), 30),
        completed=done,
        reason=torch.where(done, -1, root),
        errors=torch.full((4, len(ERRORS)), 0.1),
        contact_agreement=torch.full((4,), 0.9),
        start_state=stand_state(character, 4),
    )


@pytest.fixture
def run(tmp_path) -> Any:
    return Run(Storage.from_uri(tmp_path))


@pytest.fixture
def clips(humanoid):
    return [stand_clip(humanoid, 31), sway_clip(humanoid, 31)]


def test_rows_say_how_every_clip_does(run, clips, humanoid):
    board = ClipBoard(run, clips)
    board.add(3, episodes(humanoid, [30, 15, 3, 9]))
    table = pd.read_csv(run.dir.local_path(TABLE), keep_default_na=False).set_index("clip")
    assert table["survived"].to_dict() == pytest.approx({"stand": 0.75, "sway": 0.2})
    assert table["completed"].to_dict() == {"stand": 0.5, "sway": 0.0}
    assert table["class"].to_dict() == {"stand": "stand", "sway": "sway"}
    assert set(table["mostly_ends_by"]) == {"root_pos"}
    curves = run.scalars.seen[3]
    assert curves["clip/sway/survived"] == pytest.approx(0.2)
    assert curves["class/stand/completed"] == 0.5


def test_a_test_that_is_repeated_after_a_kill_counts_once(run, clips, humanoid):
    ClipBoard(run, clips).add(3, episodes(humanoid, [30, 15, 3, 9]))
    board = ClipBoard(run, clips)
    board.add(3, episodes(humanoid, [30, 30, 3, 9]))
    board.add(6, episodes(humanoid, [30, 30, 30, 30]))
    table = pd.read_csv(run.dir.local_path(TABLE))
    assert table["iteration"].tolist() == [3, 3, 6, 6]
    first = table[(table["iteration"] == 3) & (table["clip"] == "stand")]
    assert first["completed"].tolist() == [1.0]
    board.draw()
    assert run.dir.read_bytes(PICTURE).startswith(b"\x89PNG")


def test_the_picture_shows_the_worst_of_many(run, humanoid, monkeypatch):
    clips = [replace(stand_clip(humanoid, 31), clip_id=f"c{n}") for n in range(2)]
    board = ClipBoard(run, clips)
    board.draw()
    assert not run.dir.exists(PICTURE)
    board.add(1, episodes(humanoid, [30, 30, 3, 3]))
    whole = picture(board.table)
    monkeypatch.setattr("parc_ray.stages._clip_board.MOST_ROWS", 1)
    assert len(picture(board.table)) < len(whole)
