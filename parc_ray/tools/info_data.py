"""What ``parc info`` tells of a data set: contents, lineage, licences, storage, checks."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from parc_ray.config import DataConfig
from parc_ray.data.checks import METRIC_PREFIX, judge, verdict
from parc_ray.data.columns import read_columns
from parc_ray.data.importers.pipeline import REPAIRED
from parc_ray.data.manifest import FILE_NAME, Manifest, open_dataset
from parc_ray.data.storage import Storage
from parc_ray.data.weights import WeightedClip, probabilities
from parc_ray.tools.base import format_table
from parc_ray.tools.import_report import INFERRED_CONFIDENCE

_COLUMNS = (
    "clip_id",
    "iteration",
    "class_name",
    "source",
    "licence",
    "maker",
    "fps",
    "weight",
    "num_frames",
    "terrain_inferred",
    "terrain_confidence",
    "provenance",
    "metrics",
)
_MOST_SOURCES = 30
_SHOWN_METRICS = 12
_UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class ClipFact:
    """One clip without its frames."""

    clip_id: str
    iteration: int
    class_name: str
    source: str
    licence: str
    maker: str
    seconds: float
    weight: float
    inferred: bool
    """Whether its terrain was inferred."""
    confidence: float | None
    """How sure its terrain is where it was touched, else over all cells; None where given."""
    parents: tuple[str, ...]
    repaired: bool
    metrics: dict[str, float]


def is_dataset(path: str) -> bool:
    """Whether ``path`` is a manifest or a directory with one (and not a run)."""
    return path.endswith(".json") or Storage.from_uri(path).exists(FILE_NAME)


def dataset_facts(path: str, *, verify: bool = False) -> dict[str, Any]:
    """Everything that is told of a data set, as plain values.

    Args:
        path: its manifest, or the directory that holds it.
        verify: read all parts and compare their hashes.

    Raises:
        InputError: no data set there, or a part that cannot be read or has changed.
    """
    root, manifest = open_dataset(path)
    clips: list[ClipFact] = []
    sizes: list[int] = []
    versions: Counter[int] = Counter()
    for part in manifest.parts:
        read = read_columns(root, part, _COLUMNS, verify=verify)
        clips += [_fact(row) for row in read.table.to_pylist()]
        sizes.append(read.num_bytes)
        versions[read.schema_version] += 1
    return {
        "name": manifest.name,
        "iteration": manifest.iteration,
        "clips": len(clips),
        "seconds": sum(clip.seconds for clip in clips),
        "character": manifest.character_digest,
        "classes": _classes(clips),
        "lineage": _lineage(manifest, clips),
        "licences": _grouped(clips, lambda c: c.licence or _UNKNOWN),
        "sources": _grouped(clips, lambda c: f"{c.source} [{c.licence or _UNKNOWN}]"),
        "terrain": _terrain(clips),
        "checks": _checks(clips),
        "metrics": _metrics(clips),
        "storage": {
            "root": str(root),
            "parts": len(manifest.parts),
            "bytes": sum(sizes),
            "schema_versions": {str(k): n for k, n in sorted(versions.items())},
            "hashes_verified": verify,
        },
    }


def _fact(row: dict[str, Any]) -> ClipFact:
    provenance = json.loads(row["provenance"])
    layer, metrics = row["terrain_confidence"], json.loads(row["metrics"])
    under = metrics.get(INFERRED_CONFIDENCE)
    return ClipFact(
        clip_id=row["clip_id"],
        iteration=row["iteration"],
        class_name=row["class_name"],
        source=row["source"],
        licence=row["licence"],
        maker=row["maker"],
        seconds=(row["num_frames"] - 1) / row["fps"],
        weight=row["weight"],
        inferred=row["terrain_inferred"],
        confidence=float(np.mean(layer)) if under is None and layer else under,
        parents=tuple(provenance.get("parents", ())),
        repaired=REPAIRED in provenance.get("notes", ""),
        metrics=metrics,
    )


def _grouped(
    clips: Iterable[ClipFact], key: Callable[[ClipFact], str]
) -> dict[str, dict[str, float]]:
    """Clips and seconds by ``key``, most seconds first."""
    found: dict[str, list[float]] = defaultdict(list)
    for clip in clips:
        found[key(clip)].append(clip.seconds)
    order = sorted(found.items(), key=lambda item: (-sum(item[1]), item[0]))
    return {name: {"clips": len(times), "seconds": sum(times)} for name, times in order}


def _classes(clips: Sequence[ClipFact]) -> dict[str, dict[str, float]]:
    """Clips, seconds and share in sampling of each class, with the default floor for D0."""
    groups = _grouped(clips, lambda c: c.class_name)
    if not any(clip.weight * clip.seconds > 0 for clip in clips):
        return groups
    rows = [
        WeightedClip(
            class_name=c.class_name, seconds=c.seconds, weight=c.weight, iteration=c.iteration
        )
        for c in clips
    ]
    drawn = probabilities(rows, initial_share=DataConfig().initial_share).tolist()
    shares: dict[str, float] = defaultdict(float)
    for clip, share in zip(clips, drawn, strict=True):
        shares[clip.class_name] += share
    return {name: {**group, "share": shares[name]} for name, group in groups.items()}


def _lineage(manifest: Manifest, clips: Sequence[ClipFact]) -> dict[str, Any]:
    """How the clips came about: data sets, iterations by maker, and where the parents are.

    Clips carry the source they go back to; parents outside the set are what was corrected or
    varied on the way to it and not kept.
    """
    here = {clip.clip_id for clip in clips}
    parents = {parent for clip in clips for parent in clip.parents}
    makers = _grouped(clips, lambda c: f"{c.iteration} {c.maker}")
    return {
        "data_sets": [*manifest.parents, manifest.name],
        "made": {
            key: {**figures, "sources": len({c.source for c in clips if _made(c) == key})}
            for key, figures in sorted(makers.items(), key=lambda item: _order(item[0]))
        },
        "parents_in_set": len(parents & here),
        "parents_outside": len(parents - here),
        "generations": _generations(clips),
    }


def _made(clip: ClipFact) -> str:
    return f"{clip.iteration} {clip.maker}"


def _order(key: str) -> tuple[int, str]:
    iteration, maker = key.split(" ", maxsplit=1)
    return int(iteration), maker


def _generations(clips: Sequence[ClipFact]) -> int:
    """Longest chain of parents within the set, 1 where no clip has a parent there."""
    parents = {clip.clip_id: clip.parents for clip in clips}
    depth: dict[str, int] = {}
    for start in parents:
        chain, seen = [start], {start}
        while chain:
            todo = [p for p in parents[chain[-1]] if p in parents and p not in depth]
            todo = [p for p in todo if p not in seen]
            if todo:
                chain.append(todo[0])
                seen.add(todo[0])
                continue
            clip = chain.pop()
            depth[clip] = 1 + max((depth.get(p, 0) for p in parents[clip]), default=0)
    return max(depth.values(), default=0)


def _terrain(clips: Sequence[ClipFact]) -> dict[str, Any]:
    sure = [c.confidence for c in clips if c.inferred and c.confidence is not None]
    return {
        "given": _total([c for c in clips if not c.inferred]),
        "inferred": _total([c for c in clips if c.inferred]),
        "mean_confidence": float(np.mean(sure)) if sure else None,
    }


def _total(clips: Sequence[ClipFact]) -> dict[str, float]:
    return {"clips": len(clips), "seconds": sum(c.seconds for c in clips)}


def _checks(clips: Sequence[ClipFact]) -> dict[str, Any]:
    """How many clips each check remarks on or would refuse, by the present limits."""
    verdicts: Counter[str] = Counter()
    by_check: dict[str, Counter[str]] = defaultdict(Counter)
    for clip in clips:
        found = judge(clip.metrics)
        verdicts[verdict(found) if found else "unchecked"] += 1
        for finding in found:
            if finding.severity != "ok":
                by_check[finding.name][finding.severity] += 1
    return {
        "verdicts": dict(verdicts),
        "by_check": {name: dict(counts) for name, counts in by_check.items()},
        "repaired": sum(clip.repaired for clip in clips),
    }


def _metrics(clips: Sequence[ClipFact]) -> dict[str, dict[str, float]]:
    """Mean and greatest value of what is stored with the clips, but for the checks'."""
    values: dict[str, list[float]] = defaultdict(list)
    for clip in clips:
        for name, value in clip.metrics.items():
            if not name.startswith(METRIC_PREFIX):
                values[name].append(value)
    return {
        name: {"clips": len(v), "mean": float(np.mean(v)), "max": max(v)}
        for name, v in sorted(values.items())
    }


def dataset_text(facts: dict[str, Any]) -> str:
    """The facts as text."""
    blocks = [_head(facts), _class_table(facts["classes"]), _lineage_text(facts["lineage"])]
    blocks.append(_group_table("licence", facts["licences"]))
    blocks.append(_group_table("source", facts["sources"], _MOST_SOURCES))
    blocks.append(_quality(facts))
    if facts["metrics"]:
        blocks.append(_metric_table(facts["metrics"]))
    return "\n\n".join(blocks)


def _head(facts: dict[str, Any]) -> str:
    stored = facts["storage"]
    versions = ", ".join(f"{n} of version {v}" for v, n in stored["schema_versions"].items())
    hashes = "hashes verified" if stored["hashes_verified"] else "hashes not verified (--verify)"
    return (
        f"data set {facts['name']} of iteration {facts['iteration']}: {facts['clips']} clips, "
        f"{facts['seconds']:.1f} s\n"
        f"stored below {stored['root']}: {stored['parts']} parts, {stored['bytes'] / 1e6:.2f} MB, "
        f"schema {versions or 'without parts'}; {hashes}"
    )


def _class_table(classes: dict[str, dict[str, float]]) -> str:
    rows = [
        [name or "-", str(c["clips"]), f"{c['seconds']:.1f}", f"{100 * c.get('share', 0.0):.1f}"]
        for name, c in classes.items()
    ]
    return format_table(("class", "clips", "seconds", "drawn (%)"), rows)


def _lineage_text(lineage: dict[str, Any]) -> str:
    rows = [
        [*key.split(" ", 1), str(f["clips"]), f"{f['seconds']:.1f}", str(f["sources"])]
        for key, f in lineage["made"].items()
    ]
    table = format_table(("iteration", "made by", "clips", "seconds", "sources"), rows)
    return (
        f"lineage: {' <- '.join(reversed(lineage['data_sets']))}; {lineage['parents_in_set']} "
        f"parents in the set, {lineage['parents_outside']} outside\n{table}"
    )


def _group_table(title: str, groups: dict[str, dict[str, float]], most: int | None = None) -> str:
    shown = list(groups.items())[:most]
    rows = [[name, str(g["clips"]), f"{g['seconds']:.1f}"] for name, g in shown]
    table = format_table((title, "clips", "seconds"), rows)
    more = len(groups) - len(shown)
    return f"{table}\n... and {more} more" if more else table


def _quality(facts: dict[str, Any]) -> str:
    terrain, checks = facts["terrain"], facts["checks"]
    sure = terrain["mean_confidence"]
    lines = [
        f"terrain: given for {terrain['given']['clips']} clips, inferred for "
        f"{terrain['inferred']['clips']}"
        + ("" if sure is None else f" with mean confidence {sure:.2f}"),
        "checks: "
        + (", ".join(f"{n} {name}" for name, n in checks["verdicts"].items()) or "none")
        + f"; {checks['repaired']} repaired",
    ]
    for name, counts in checks["by_check"].items():
        lines.append(f"  {name}: " + ", ".join(f"{n} {kind}" for kind, n in counts.items()))
    return "\n".join(lines)


def _metric_table(metrics: dict[str, dict[str, float]]) -> str:
    rows = [
        [name, str(m["clips"]), f"{m['mean']:.4g}", f"{m['max']:.4g}"]
        for name, m in list(metrics.items())[:_SHOWN_METRICS]
    ]
    return format_table(("metric", "clips", "mean", "max"), rows)
