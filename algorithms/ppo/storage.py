"""The folder of one training: checkpoints by rename, ``LATEST``, the best policy, a metrics log.

On object stores the training works in a local folder and keeps a copy there
(``parc_ray.data.mirror``).
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from algorithms.ppo.checkpoint import STATE_FILE, save_state
from algorithms.ppo.policy import MlpPolicy
from parc_ray.data.digests import is_whole, newest_whole, write_digest
from parc_ray.data.mirror import Mirror
from parc_ray.data.patience import write_whole
from parc_ray.data.scratch import scratch
from parc_ray.data.storage import Storage
from parc_ray.errors import InputError

logger = logging.getLogger(__name__)

LATEST = "LATEST"
POLICY = "policy.pt"
BEST = "best.pt"
METRICS = "metrics.jsonl"
CHECKPOINTS = "ckpt_"


class RunFolder:
    """Files of one training; a kill at any moment leaves a usable folder."""

    def __init__(self, root: Path, keep: int, remote: Storage | None = None) -> None:
        """Create ``root``; ``keep`` checkpoints stay beside the newest.

        Args:
            root: a local directory.
            keep: how many older checkpoints stay.
            remote: where the files belong if ``root`` is only the place to work in; its newest
                whole checkpoint is fetched, and every later one is sent there.
        """
        self.root, self.keep = root, keep
        self.home = Storage.from_uri(root) if remote is None else remote
        """Where the files belong."""
        root.mkdir(parents=True, exist_ok=True)
        for leftover in root.glob(".ckpt_*.tmp"):
            shutil.rmtree(leftover)
        self._mirror = None if remote is None else Mirror(remote, root)
        if self._mirror is not None:
            newest = self._mirror.pull_newest(CHECKPOINTS)
            if newest is not None:
                self._mirror.pull(METRICS)
                _replace_text(root / LATEST, newest + "\n")

    def in_use(self) -> bool:
        """Whether a training has left a checkpoint here, whole or not."""
        return (self.root / LATEST).exists()

    def newest(self) -> Path | None:
        """Folder of the newest checkpoint that is whole, or None.

        Where that of ``LATEST`` is damaged the folder goes back to one before it, or to the start.

        Raises:
            InputError: ``LATEST`` names a checkpoint that is not there.
        """
        marker = self.root / LATEST
        if not marker.exists():
            return None
        path = self.root / marker.read_text().strip()
        if not (path / STATE_FILE).is_file():
            raise InputError(
                f"{marker}: names {path.name}, which is not there; put it back or delete LATEST"
            )
        return path if is_whole(path / STATE_FILE) else self._older_than(path)

    def _older_than(self, damaged: Path) -> Path | None:
        """Go back to the newest whole checkpoint before a damaged one, or to the start."""
        before = [p for p in self.root.glob("ckpt_*") if p.name < damaged.name]
        back = newest_whole(before, STATE_FILE)
        logger.warning(
            "%s: the checkpoint is damaged; going on from %s",
            damaged,
            back.name if back else "the start",
        )
        if back is not None:
            _replace_text(self.root / LATEST, back.name + "\n")
        else:
            (self.root / LATEST).unlink()
            self.restore(0)
        return back

    def save(self, iteration: int, state: dict[str, Any], policy: MlpPolicy) -> Path:
        """Write a checkpoint into a temporary folder, rename it, then move ``LATEST`` to it."""
        final = self.root / f"ckpt_{iteration:06d}"
        temporary = self.root / f".{final.name}.tmp"
        temporary.mkdir()
        save_state(temporary / STATE_FILE, state)
        write_digest(temporary / STATE_FILE)
        policy.save(temporary / POLICY)
        if (self.root / BEST).exists():
            shutil.copyfile(self.root / BEST, temporary / BEST)
        if final.exists():
            shutil.rmtree(final)
        temporary.rename(final)
        _replace_text(self.root / LATEST, final.name + "\n")
        self._prune(final)
        if self._mirror is not None:
            self._mirror.push(METRICS)  # its rows reach as far as the checkpoint, or farther
            self._mirror.push_folder(final.name)
            self._mirror.push(LATEST)
            left = [p.name for p in self.root.glob(f"{CHECKPOINTS}*")]
            self._mirror.keep_only(CHECKPOINTS, left)
        return final

    def _prune(self, newest: Path) -> None:
        others = sorted(p for p in self.root.glob("ckpt_*") if p.name < newest.name)
        for old in others[: max(0, len(others) - self.keep)]:
            shutil.rmtree(old)

    def restore(self, iteration: int) -> None:
        """Make best policy and metrics log those of checkpoint ``iteration``."""
        stored = self.root / f"ckpt_{iteration:06d}" / BEST
        (self.root / BEST).unlink(missing_ok=True)
        if stored.exists():
            temporary = self.root / f".{BEST}.tmp"
            shutil.copyfile(stored, temporary)
            temporary.replace(self.root / BEST)
        for later in self.root.glob("ckpt_*"):
            if later.name > f"ckpt_{iteration:06d}":
                shutil.rmtree(later)
        log = self.root / METRICS
        if log.exists():
            lines = [line for line in log.read_text().splitlines() if line.endswith("}")]
            kept = [line for line in lines if json.loads(line)["iteration"] <= iteration]
            _replace_text(log, "".join(line + "\n" for line in kept))

    def log(self, iteration: int, metrics: dict[str, float]) -> None:
        """Append one iteration's metrics."""
        with (self.root / METRICS).open("a") as handle:
            handle.write(json.dumps({"iteration": iteration, **metrics}) + "\n")

    def keep_best(self, policy: MlpPolicy) -> None:
        """Store ``policy`` as the best so far."""
        policy.save(self.root / BEST)

    def publish(self, policy: MlpPolicy) -> tuple[Path, Path | None]:
        """Write the final policy; paths of it and of the best (None where none was evaluated)."""
        policy.save(self.root / POLICY)
        best = self.root / BEST
        if self._mirror is not None:
            self._mirror.push(METRICS, POLICY, BEST)
        return self.root / POLICY, best if best.exists() else None

    def publish_log(self) -> None:
        """Send the metrics of a training that diverged; on mounted storage they are there."""
        if self._mirror is not None:
            self._mirror.push(METRICS)


@contextmanager
def run_folder(where: str | Path | Storage, keep: int) -> Iterator[RunFolder]:
    """The folder of a training at ``where``; on object stores with a local one to work in."""
    storage = Storage.from_uri(where)
    if storage.is_local:
        yield RunFolder(storage.local_path(), keep)
        return
    with scratch("tracker") as directory:
        yield RunFolder(directory, keep, storage)


def _replace_text(path: Path, text: str) -> None:
    write_whole(path, text.encode())
