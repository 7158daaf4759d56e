"""Plans of spatial variants of a clip: cheap, pure, and all that is random."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import max_pool2d

from parc_ray.character.rotations import rotate_xy
from parc_ray.motion.clip import MotionClip
from parc_ray.synthesis.config import AugmentConfig, ClassRecipe
from parc_ray.terrain.heightfield import Heightfield

_FLAT_M = 0.02
_CONTACT = 0.5
_REDRAWS = 64
_NARROWING = 0.7
_CLEAR_M = 1.0  # blocks grow no nearer to the root's path than this


@dataclass(frozen=True, kw_only=True)
class Box:
    """A turned rectangle of cells set to one height.

    Attributes:
        x: centre, world metres.
        y: centre, world metres.
        half_x: half length along its own x, metres.
        half_y: half length along its own y, metres.
        angle: of its own x to the world's, rad.
        height: of the cells above the ground of the clip, metres.
    """

    x: float
    y: float
    half_x: float
    half_y: float
    angle: float
    height: float


@dataclass(frozen=True, kw_only=True)
class VariantPlan:
    """Everything that distinguishes a variant from its parent.

    Attributes:
        parent_id: clip it is made from.
        variant_id: id of the new clip.
        seed: of the draws of this plan.
        start: first frame of the crop.
        num_frames: length of the crop.
        mirror: whether the clip is mirrored first.
        heading: turn about the middle frame's root, rad.
        scale_x: factor on x about the same point.
        scale_y: factor on y.
        extent_x: factor on the terrain's extent along x, which the motion follows.
        extent_y: factor along y.
        grow: cells by which blocks grow away from the path; negative ones shrink.
        kind: what happens to the terrain.
        height_scale: factor on all heights about the ground under the first frame.
        boxes: painted in this order, for ``kind`` boxes.
        level_change: planned change of the ground under the root path, metres.
        attempt: 0, or how often the variant was planned anew.
    """

    parent_id: str
    variant_id: str
    seed: int
    start: int
    num_frames: int
    mirror: bool
    heading: float
    scale_x: float
    scale_y: float
    extent_x: float
    extent_y: float
    grow: int
    kind: Literal["height_scale", "boxes", "none"]
    height_scale: float
    boxes: tuple[Box, ...]
    level_change: float
    attempt: int = 0

    def to_json(self) -> str:
        """The plan as one line of JSON, for provenance."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> VariantPlan:
        """The inverse of ``to_json``."""
        fields = json.loads(text)
        return cls(**{**fields, "boxes": tuple(Box(**box) for box in fields["boxes"])})


def is_flat(terrain: Heightfield) -> bool:
    """Whether all cells lie within 2 cm."""
    return float(terrain.heights.max() - terrain.heights.min()) < _FLAT_M


def recipe_for(clip: MotionClip, cfg: AugmentConfig) -> ClassRecipe:
    """Recipe of the clip's skill or class, else the flat or the terrain recipe.

    A recipe's name of several words, such as ``mid_climb``, is looked for in the clip's id first:
    importers put such skills into a broader class.
    """
    name = recipe_name(clip, cfg)
    return cfg.recipes[name] if name in cfg.recipes else getattr(cfg, name)


def recipe_name(clip: MotionClip, cfg: AugmentConfig) -> str:
    """Key in ``cfg.recipes`` or name of the field that holds the clip's recipe."""
    words = re.sub(r"[^a-z]+", "_", f" {clip.clip_id.lower()} ")
    for name in sorted(cfg.recipes, key=len, reverse=True):
        if "_" in name and f"_{name}_" in words:
            return name
    if clip.provenance.class_name in cfg.recipes:
        return clip.provenance.class_name
    return "flat_recipe" if is_flat(clip.terrain) else "terrain_recipe"


def planned_xy(clip: MotionClip, plan: VariantPlan, points_xy: Tensor) -> Tensor:
    """Where the plan's mirroring, turn and scales take world points (..., 2) of the parent."""
    pivot = _pivot(clip, plan)
    if plan.mirror:
        points_xy = points_xy * points_xy.new_tensor([1.0, -1.0])
    angle = points_xy.new_tensor(plan.heading)
    turned = rotate_xy(points_xy - pivot, angle.expand(points_xy.shape[:-1]))
    scale = (plan.scale_x * plan.extent_x, plan.scale_y * plan.extent_y)
    return pivot + turned * points_xy.new_tensor(scale)


def _pivot(clip: MotionClip, plan: VariantPlan) -> Tensor:
    """Point (2,) about which the plan turns and stretches: the middle root, mirrored if need be."""
    middle = clip.frames.root_pos[plan.start + plan.num_frames // 2, :2]
    return middle * middle.new_tensor([1.0, -1.0]) if plan.mirror else middle


def planned_terrain(clip: MotionClip, plan: VariantPlan, padding_m: float) -> Heightfield:
    """Terrain of the variant: around its root path, stretched, scaled, with boxes, blocks grown.

    It reaches ``padding_m`` beyond the path on all sides; what the parent's grid does not hold is
    filled from its edge. It is not turned with the motion. Augmentation bounds are dropped.
    """
    root = clip.frames.root_pos[plan.start : plan.start + plan.num_frames]
    xy = planned_xy(clip, plan, root[:, :2])
    base = clip.terrain.mirrored() if plan.mirror else clip.terrain
    terrain = base.cropped(xy.amin(0), xy.amax(0), padding_m)
    terrain = replace(terrain, upper=None, lower=None, confidence=None)
    centers, heights = terrain.cell_centers(), terrain.heights
    if (plan.extent_x, plan.extent_y) != (1.0, 1.0):
        pivot = _pivot(clip, plan)
        extent = pivot.new_tensor([plan.extent_x, plan.extent_y])
        heights = base.height_at(pivot + (centers - pivot) / extent)
    ground = float(clip.terrain.height_at(root[0, :2]))
    if plan.kind == "height_scale":
        heights = ground + (heights - ground) * plan.height_scale
    if plan.grow != 0:
        heights = _grown(heights, plan.grow, torch.cdist(centers.flatten(0, 1), xy))
    for box in plan.boxes:
        offset = centers - torch.tensor([box.x, box.y])
        turned = rotate_xy(offset, torch.tensor(-box.angle).expand(offset.shape[:-1])).abs()
        inside = (turned[..., 0] < box.half_x) & (turned[..., 1] < box.half_y)
        heights = torch.where(inside, ground + box.height, heights)
    return replace(terrain, heights=heights.clone())


def _grown(heights: Tensor, cells: int, away: Tensor) -> Tensor:
    """Greatest (least, for negative ``cells``) heights (X, Y) around every cell far from the path.

    Args:
        heights: (X, Y) metres.
        cells: half width of the neighbourhood.
        away: (X * Y, T) distances of the cells from the root path, metres.
    """
    sign, width = (1.0, cells) if cells > 0 else (-1.0, -cells)
    pooled = max_pool2d(sign * heights[None, None], 2 * width + 1, 1, width)[0, 0] * sign
    free = (away.amin(1) >= _CLEAR_M).view(heights.shape)
    return torch.where(free, pooled, heights)


def path_levels(terrain: Heightfield, root_xy: Tensor, standing: Tensor) -> tuple[float, float]:
    """Level change and largest single step of the ground under a path, metres.

    Args:
        terrain: the ground.
        root_xy: (T, 2) world metres.
        standing: (T,) bool, frames in which something touches the ground; only they count for the
            change (what is flown over is not crossed), all frames where there are none.

    Returns:
        90 % minus 10 % quantile of the ground where the motion stands, so that an edge grazed in
        passing does not count; largest step from frame to frame.
    """
    level = terrain.height_at(root_xy)
    step = (level[1:] - level[:-1]).abs()
    stood = level[standing] if bool(standing.any()) else level
    low, high = torch.quantile(stood, torch.tensor([0.1, 0.9]), interpolation="nearest").tolist()
    return high - low, float(step.max()) if len(step) else 0.0


def _draw_boxes(
    clip: MotionClip, plan: VariantPlan, recipe: ClassRecipe, rng: np.random.Generator
) -> tuple[Box, ...]:
    """Boxes centred on the root at random frames of the varied motion."""
    root = clip.frames.root_pos[plan.start : plan.start + plan.num_frames, :2]
    xy = planned_xy(clip, plan, root)
    low, high = recipe.min_box_height_m, recipe.box_height_m
    boxes = []
    for _ in range(int(rng.integers(recipe.boxes[0], recipe.boxes[1] + 1))):
        centre = xy[int(rng.integers(len(xy)))]
        half = rng.uniform(*recipe.box_cells, size=2) * clip.terrain.cell_size / 2
        angle = math.radians(recipe.box_angle_deg) * rng.uniform(-1.0, 1.0)
        height = rng.uniform(low, high) * rng.choice([-1.0, 1.0])
        boxes.append(
            Box(
                x=float(centre[0]),
                y=float(centre[1]),
                half_x=float(half[0]),
                half_y=float(half[1]),
                angle=float(angle),
                height=float(height),
            )
        )
    return tuple(boxes)


def _draw_height_scale(recipe: ClassRecipe, rng: np.random.Generator) -> float:
    """Height factor outside the bad range."""
    for _ in range(_REDRAWS):
        scale = float(rng.uniform(*recipe.height_scale))
        bad = recipe.bad_height_scale
        if bad is None or not bad[0] <= scale <= bad[1]:
            return scale
    return recipe.height_scale[0]


def _draw_plan(
    clip: MotionClip,
    recipe: ClassRecipe,
    cfg: AugmentConfig,
    variant_id: str,
    seed: int,
    rng: np.random.Generator,
) -> VariantPlan:
    """One draw of everything."""
    most = max(math.floor(recipe.max_length_s * clip.fps) + 1, round(cfg.min_length_s * clip.fps))
    length = min(clip.num_frames, most)
    plan = VariantPlan(
        parent_id=clip.clip_id,
        variant_id=variant_id,
        seed=seed,
        start=int(rng.integers(clip.num_frames - length + 1)),
        num_frames=length,
        mirror=bool(rng.random() < recipe.mirror_share),
        heading=math.radians(recipe.heading_deg) * float(rng.uniform(-1.0, 1.0)),
        scale_x=float(rng.uniform(*recipe.xy_scale)),
        scale_y=float(rng.uniform(*recipe.xy_scale)),
        extent_x=float(rng.uniform(*recipe.extent_scale)),
        extent_y=float(rng.uniform(*recipe.extent_scale)),
        grow=int(rng.integers(recipe.grow_cells[0], recipe.grow_cells[1] + 1)),
        kind=recipe.kind,
        height_scale=_draw_height_scale(recipe, rng) if recipe.kind == "height_scale" else 1.0,
        boxes=(),
        level_change=0.0,
    )
    if recipe.kind == "boxes":
        plan = replace(plan, boxes=_draw_boxes(clip, plan, recipe, rng))
    return plan


def plan_variants(
    clips: Sequence[MotionClip], cfg: AugmentConfig, seed: int, count: int | None = None
) -> list[VariantPlan]:
    """Plans of ``count`` variants of every clip.

    Each plan has its own random stream, made from ``seed``, the clip's id and the variant's
    number: plans do not depend on what other clips or variants are asked for.

    Args:
        clips: parents.
        cfg: recipes.
        seed: of all plans.
        count: per clip; None takes ``cfg.variants_per_clip``.

    Returns:
        Plans by clip, then number.
    """
    plans = []
    for clip in clips:
        recipe = recipe_for(clip, cfg)
        name = int.from_bytes(clip.clip_id.encode()[-16:], "little")
        for k in range(cfg.variants_per_clip if count is None else count):
            sub = int(np.random.SeedSequence([seed, name, k]).generate_state(1)[0])
            rng = np.random.default_rng(sub)
            plans.append(_accepted_plan(clip, recipe, cfg, f"{clip.clip_id}_v{k:03d}", sub, rng))
    return plans


def plan_again(
    clip: MotionClip, plan: VariantPlan, cfg: AugmentConfig, attempt: int
) -> VariantPlan:
    """Another draw of the same variant, nearer to the parent with every attempt.

    The seed is made of the first one's and the attempt; ranges shrink by ``_NARROWING`` each time.
    """
    sub = int(np.random.SeedSequence([plan.seed, attempt]).generate_state(1)[0])
    recipe = _narrowed(recipe_for(clip, cfg), _NARROWING**attempt)
    rng = np.random.default_rng(sub)
    fresh = _accepted_plan(clip, recipe, cfg, plan.variant_id, sub, rng)
    return replace(fresh, attempt=attempt)


def _narrowed(recipe: ClassRecipe, share: float) -> ClassRecipe:
    """The recipe with its ranges shrunk to ``share`` of themselves around no change."""

    def near_one(span: tuple[float, float]) -> tuple[float, float]:
        return 1.0 + share * (span[0] - 1.0), 1.0 + share * (span[1] - 1.0)

    return replace(
        recipe,
        height_scale=near_one(recipe.height_scale),
        bad_height_scale=None,
        xy_scale=near_one(recipe.xy_scale),
        extent_scale=near_one(recipe.extent_scale),
        heading_deg=share * recipe.heading_deg,
        box_height_m=max(recipe.min_box_height_m, share * recipe.box_height_m),
    )


def _accepted_plan(
    clip: MotionClip,
    recipe: ClassRecipe,
    cfg: AugmentConfig,
    variant_id: str,
    seed: int,
    rng: np.random.Generator,
) -> VariantPlan:
    """Redraw until the path crosses enough levels in small enough steps; else the best draw."""
    best: VariantPlan | None = None
    for _ in range(_REDRAWS):
        plan = _draw_plan(clip, recipe, cfg, variant_id, seed, rng)
        terrain = planned_terrain(clip, plan, cfg.padding_m)
        part = clip.frames.time(plan.start, plan.start + plan.num_frames)
        xy = planned_xy(clip, plan, part.root_pos[:, :2])
        change, step = path_levels(terrain, xy, (part.contacts > _CONTACT).any(-1))
        plan = replace(plan, level_change=change)
        if recipe.kind != "boxes":
            return plan
        gentle = recipe.max_path_step_m is None or step <= recipe.max_path_step_m + 1e-6
        if gentle and (best is None or change > best.level_change):
            best = plan
        if gentle and change >= recipe.min_level_change_m:
            return plan
    return plan if best is None else best
