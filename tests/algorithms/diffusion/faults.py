"""A source of windows that loses power, and a driver that trains on it."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
from pathlib import Path

import torch

from parc_ray.character.character import Character, load_character
from tests.algorithms.diffusion.fakes import FakeWindows, make_bank


class FaultyBank:
    """Like the fake bank; every draw of a training batch leaves a line in ``diary``.

    At the ``at``-th such draw of the first life, processes are killed with signal 9: this one, and
    before it ``driver`` if given. ``rank`` limits that to one worker.
    """

    def __init__(
        self,
        character: Character,
        diary: Path,
        share: int,
        at: int,
        driver: int | None = None,
        rank: int = 0,
    ) -> None:
        self.bank = make_bank(character)
        self.terrains = self.bank.terrains
        self.diary, self.share, self.at, self.driver, self.rank = diary, share, at, driver, rank
        self.drawn = 0

    def sample_windows(self, rng: torch.Generator, n: int, num_frames: int) -> FakeWindows:
        if n == self.share:  # probes and statistics draw other numbers
            self.drawn += 1
            with self.diary.open("a") as file:
                file.write(f"{os.getpid()}\n")
            mark = self.diary.with_suffix(".killed")
            if self.drawn == self.at and self._is_mine() and not mark.exists():
                mark.touch()
                if self.driver is not None:
                    os.kill(self.driver, signal.SIGKILL)
                os.kill(os.getpid(), signal.SIGKILL)
        return self.bank.sample_windows(rng, n, num_frames)

    def _is_mine(self) -> bool:
        import ray.train

        return ray.train.get_context().get_world_rank() == self.rank


def lives(diary: Path) -> dict[int, int]:
    """Draws per process, in the order in which the processes began."""
    counts: dict[int, int] = {}
    for line in diary.read_text().splitlines():
        counts[int(line)] = counts.get(int(line), 0) + 1
    return counts


def faulty_config(steps: int):
    """The tiny profile; batches of 8, a checkpoint every second step."""
    from algorithms.diffusion.profiles import tiny

    config = tiny()
    train = dataclasses.replace(
        config.train,
        steps=steps,
        batch_size=8,
        stat_windows=64,
        report_every=2,
        log_every=1,
        torch_threads=1,
    )
    return dataclasses.replace(config, train=train)


def main(out: str) -> None:
    """Train with a Ray of its own until the worker kills this process."""
    import ray

    from algorithms.diffusion.train import train_generator

    ray.init(
        address="local",
        num_cpus=3,
        include_dashboard=False,
        object_store_memory=128 * 2**20,
        log_to_driver=False,
    )
    character = load_character("humanoid")
    diary, driver = Path(out) / "diary", os.getpid()
    train_generator(
        lambda: FaultyBank(character, diary, 8, 6, driver),
        character,
        faulty_config(10),
        out,
        "faulty",
        resources={"CPU": 0.5},
    )


if __name__ == "__main__":
    main(sys.argv[1])
