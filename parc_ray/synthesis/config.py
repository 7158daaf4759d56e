"""Settings of the synthesis stage; each field says its unit and PARC's value.

Where paper and published code differ: docs/design/synthesis.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from parc_ray.synthesis.checks import check_field, check_range
from parc_ray.synthesis.optimizer_config import OptimizerConfig, own_optimizer

__all__ = [
    "AugmentConfig",
    "ClassRecipe",
    "HesitationConfig",
    "OptimizerConfig",
    "PlannerConfig",
    "RolloutConfig",
    "SelectionConfig",
    "SynthesisConfig",
    "VariantQuality",
    "check_field",
    "class_recipes",
    "own_optimizer",
    "published_augmentation",
]


@dataclass(frozen=True, kw_only=True)
class PlannerConfig:
    """Navigation graph, step cost (PARC, eq. 6) and choice of start and end."""

    max_step_z_m: float = 2.1
    """Largest |dz| of a walk or climb edge between neighbours, m. PARC 2.1."""
    max_jump_xy_m: float = 3.0
    """Longest horizontal distance of a jump edge, m; 0 means no jumps. PARC 3.0."""
    min_jump_z_m: float = -1.0
    """Lowest landing relative to take-off, m. PARC -1.0."""
    max_jump_z_m: float = 0.5
    """Highest landing, and highest obstacle on the way, relative to take-off, m. PARC 0.5."""
    w_xy: float = 1.0
    """Weight of the squared horizontal distance. PARC 1.0."""
    w_z: float = 0.15
    """Weight of the squared height difference. PARC 0.15."""
    w_bumpy: float = 0.0
    """Weight of the (capped) bumpiness of the cell entered. Published config 0.0."""
    max_bumpy_m: float = 0.2
    """Cap of the bumpiness, m. PARC 0.2."""
    noise: tuple[float, float] = (0.0, 0.5)
    """Uniform range of the fixed noise on each directed edge. PARC (0, 0.5)."""
    min_distance_m: float = 5.0
    """Least horizontal distance of start and end, m. PARC 5.0."""
    max_cost: float = 1000.0
    """Paths that cost more are refused. PARC 1000."""
    attempts: int = 10
    """Start/end pairs tried per terrain. PARC 10."""
    simplify: bool = True
    """Max-pool 2x2 blocks and flatten around start and end before planning. PARC true."""

    def __post_init__(self) -> None:
        """Validate the ranges."""
        check_field(self.max_step_z_m >= 0, self, "max_step_z_m", ">= 0 m")
        check_field(self.max_jump_xy_m >= 0, self, "max_jump_xy_m", ">= 0 m")
        check_field(self.min_jump_z_m <= self.max_jump_z_m, self, "min_jump_z_m", "<= max_jump_z_m")
        check_field(self.w_xy > 0, self, "w_xy", "> 0")
        check_field(self.w_z >= 0, self, "w_z", ">= 0")
        check_field(self.w_bumpy >= 0, self, "w_bumpy", ">= 0")
        check_range(self, "noise")
        check_field(self.noise[0] >= 0, self, "noise", ">= 0 (costs must not be negative)")
        check_field(self.attempts >= 1, self, "attempts", ">= 1")
        check_field(self.max_cost > 0, self, "max_cost", "> 0")


@dataclass(frozen=True, kw_only=True)
class RolloutConfig:
    """Autoregressive roll-outs of candidates along paths."""

    candidates: int = 64
    """Candidates per path. Paper 64, published config 128."""
    lookahead_m: float = 2.8
    """Arc length from the present progress to the target, m. PARC 7 nodes of 0.4 m."""
    second_lookahead_m: float = 1.2
    """Arc length from there to a second target, where a generator is told one, m. PARC: none."""
    smooth_m: float = 0.0
    """Corners of the path are rounded over this length before it is followed, m; 0: it is followed
    as the planner made it. PARC 0."""
    rewind: int = 5
    """Frames at the end of each window that are thrown away (plus one). PARC 5."""
    max_duration_s: float = 10.0
    """Roll-outs stop here, unfinished, s. PARC 10."""
    done_radius_m: float = 0.5
    """Mean foot position nearer than this (3-D) to the last node is the end, m. PARC 0.5."""
    settle_windows: int = 1
    """Windows generated after the end was reached and kept. PARC 1."""
    start_height_m: tuple[float, float] = (0.7, 0.9)
    """Uniform range of the root's height above the first node, m. PARC (0.7, 0.9)."""
    heading: Literal["path", "random"] = "path"
    """Heading of the first window: along the path or drawn per candidate. PARC has both."""
    lost_margin_m: float = 1.0
    """A root further than this outside the terrain has failed, m. PARC has no such test."""
    fall_depth_m: float = 1.0
    """A root deeper than this under the surface has failed, m. PARC has no such test."""
    stall_s: float | None = None
    """Give a candidate up after this long without progress, s; None never. PARC never."""

    def __post_init__(self) -> None:
        """Validate the ranges."""
        check_field(self.candidates >= 1, self, "candidates", ">= 1")
        check_field(self.lookahead_m > 0, self, "lookahead_m", "> 0 m")
        check_field(self.second_lookahead_m >= 0, self, "second_lookahead_m", ">= 0 m")
        check_field(self.smooth_m >= 0, self, "smooth_m", ">= 0 m")
        check_field(self.rewind >= 0, self, "rewind", ">= 0")
        check_field(self.max_duration_s > 0, self, "max_duration_s", "> 0 s")
        check_field(self.done_radius_m > 0, self, "done_radius_m", "> 0 m")
        check_field(self.settle_windows >= 0, self, "settle_windows", ">= 0")
        check_range(self, "start_height_m")
        check_field(self.heading in ("path", "random"), self, "heading", "'path' or 'random'")
        check_field(self.lost_margin_m >= 0, self, "lost_margin_m", ">= 0 m")
        check_field(self.stall_s is None or self.stall_s > 0, self, "stall_s", "> 0 s or None")


@dataclass(frozen=True, kw_only=True)
class SelectionConfig:
    """Score and thresholds of candidates (PARC, eq. 14)."""

    w_penetration: float = 0.1
    """Weight of TPL (m points) in the score. Published config 0.1, paper 1."""
    w_contact: float = 0.1
    """Weight of TCL (m) in the score. Published config 0.1, paper 1."""
    unfinished_penalty: float = 100.0
    """Added where the end was not reached. Published config 100, paper 1000."""
    w_progress: float = 1.0
    """Weight of the share of the path not covered (0..1). PARC 0."""
    w_seam_jerk: float = 0.001
    """Weight of the largest jerk at a window seam above ``seam_jerk_free``, s^3. PARC 0."""
    seam_jerk_free_m_s3: float = 11666.39
    """Seam jerk that costs nothing, m/s^3: the largest of PARC's mocap."""
    max_penetration: float = 80.0
    """Reject above this TPL, m points. PARC 80."""
    max_contact: float = 30.0
    """Reject above this TCL, m. PARC 30."""
    max_score: float = 30.0
    """Reject above this score. PARC 30."""
    require_finished: bool = True
    """Reject candidates that have not reached the end. PARC true, through the penalty."""
    min_progress: float = 0.0
    """Reject below this share of the path (0..1), for ``require_finished=False``. PARC none."""
    min_frames: int = 30
    """Reject shorter motions. PARC none."""
    top_k: int = 2
    """Accepted candidates kept per path, best first. Published config 2, paper 1."""

    def __post_init__(self) -> None:
        """Validate the ranges."""
        for name in ("w_penetration", "w_contact", "unfinished_penalty", "w_progress"):
            check_field(getattr(self, name) >= 0, self, name, ">= 0")
        check_field(self.w_seam_jerk >= 0, self, "w_seam_jerk", ">= 0")
        for name in ("max_penetration", "max_contact", "max_score"):
            check_field(getattr(self, name) > 0, self, name, "> 0")
        check_field(0 <= self.min_progress <= 1, self, "min_progress", "0..1")
        check_field(self.min_frames >= 1, self, "min_frames", ">= 1")
        check_field(self.top_k >= 1, self, "top_k", ">= 1")


@dataclass(frozen=True, kw_only=True)
class HesitationConfig:
    """Removal of frames in which nothing happens; in the published code only."""

    enabled: bool = True
    """Whether to remove hesitations. PARC true."""
    distance_m: float = 0.15
    """Frobenius distance of body positions that counts as the same pose, m. PARC 0.15."""
    min_run: int = 4
    """Shortest run of repeated frames that is removed. PARC 4."""
    speedup_cap: float = 1.5
    """At a cut no body moves further per frame than this times its largest step nearby; inf
    gives PARC's behaviour (up to twelvefold speed-up of slow motion)."""

    def __post_init__(self) -> None:
        """Validate the ranges."""
        check_field(self.distance_m > 0, self, "distance_m", "> 0 m")
        check_field(self.min_run >= 1, self, "min_run", ">= 1")
        check_field(self.speedup_cap >= 1, self, "speedup_cap", ">= 1")


@dataclass(frozen=True, kw_only=True)
class ClassRecipe:
    """How clips of one class are varied."""

    kind: Literal["height_scale", "boxes", "none"] = "height_scale"
    """What happens to the terrain."""
    max_length_s: float = 10.0
    """Longer clips are cropped at a random start, s."""
    height_scale: tuple[float, float] = (0.8, 1.05)
    """Factor on all terrain heights."""
    bad_height_scale: tuple[float, float] | None = None
    """Factors redrawn (too near to the original)."""
    boxes: tuple[int, int] = (2, 6)
    """Number of boxes along the path, inclusive."""
    box_height_m: float = 0.3
    """Box heights are drawn from plus or minus this, m."""
    min_box_height_m: float = 0.0
    """Box heights nearer to zero are redrawn, m. PARC 0."""
    box_cells: tuple[float, float] = (4.0, 8.0)
    """Side lengths of the boxes in cells."""
    box_angle_deg: float = 180.0
    """Boxes are turned by plus or minus this."""
    heading_deg: float = 1.0
    """The motion is turned by plus or minus this. PARC a constant 1 (vaulting 15)."""
    xy_scale: tuple[float, float] = (0.95, 1.05)
    """Independent factors on root x and y; the terrain does not follow them."""
    extent_scale: tuple[float, float] = (1.0, 1.0)
    """Independent factors on the terrain's extents along x and y, which the motion follows.
    PARC none."""
    grow_cells: tuple[int, int] = (0, 0)
    """Blocks grow (shrink, if negative) by so many cells, inclusive, away from the path. PARC
    none."""
    mirror_share: float = 0.5
    """Share of variants that are mirrored."""
    max_path_step_m: float | None = None
    """Plans whose root path crosses a higher single step are redrawn, m. PARC none."""
    min_level_change_m: float = 0.0
    """Plans whose root path crosses less are redrawn, m (at most 64 times). PARC 0."""

    def __post_init__(self) -> None:
        """Validate the ranges."""
        kinds = ("height_scale", "boxes", "none")
        check_field(self.kind in kinds, self, "kind", f"one of {kinds}")
        check_field(self.max_length_s > 0, self, "max_length_s", "> 0 s")
        ranges = ("height_scale", "boxes", "box_cells", "xy_scale", "extent_scale", "grow_cells")
        for name in ranges:
            check_range(self, name)
        check_field(self.boxes[0] >= 0, self, "boxes", ">= 0")
        for name in ("xy_scale", "extent_scale"):
            check_field(getattr(self, name)[0] > 0, self, name, "> 0")
        check_field(
            0 <= self.min_box_height_m <= self.box_height_m,
            self,
            "min_box_height_m",
            "0..box_height_m",
        )
        check_field(0 <= self.mirror_share <= 1, self, "mirror_share", "0..1")


def class_recipes() -> dict[str, ClassRecipe]:
    """Ranges per class: heights as in the published code; turns and extents are drawn.

    The published configs have one constant turn per class (1 or 15 degrees), stretch only two
    classes and change no extents. Classes go by the names of PARC's folders and of importers; what
    importers call run or walk takes ``flat_recipe`` or ``terrain_recipe``, as its ground is.
    """
    climb = ClassRecipe(height_scale=(0.8, 1.05), extent_scale=(0.95, 1.05), grow_cells=(0, 2))
    middle = replace(climb, height_scale=(0.8, 1.1), bad_height_scale=(0.96, 1.04))
    platform = ClassRecipe(
        height_scale=(0.5, 1.2), max_length_s=4.0, extent_scale=(0.85, 1.15), grow_cells=(-1, 3)
    )
    stairs = ClassRecipe(height_scale=(0.5, 1.2), extent_scale=(0.9, 1.1), grow_cells=(0, 2))
    vault = ClassRecipe(
        height_scale=(0.6, 1.2),
        max_length_s=6.0,
        heading_deg=15.0,
        extent_scale=(0.95, 1.05),
        grow_cells=(-1, 3),
    )
    jump = ClassRecipe(kind="none", extent_scale=(0.9, 1.1))
    flat = ClassRecipe(kind="boxes", max_length_s=4.0, heading_deg=180.0)
    return {
        "climbing": climb,
        "climb": climb,
        "mid_climbing": middle,
        "mid_climb": middle,
        "platform": platform,
        "stairs": stairs,
        "vaulting": vault,
        "vault": vault,
        "jumping": jump,
        "jump": jump,
        "running": flat,
        "walking": flat,
    }


@dataclass(frozen=True, kw_only=True)
class VariantQuality:
    """What a variant must keep; PARC has no such test. Others are made anew, then dropped."""

    max_mean_depth_m: float = 0.005
    """Depth of the deepest surface point, mean over frames, m."""
    max_depth_m: float = 0.05
    """Depth of any surface point in any frame, m."""
    max_limit_excess_deg: float = 2.0
    """Joint coordinates beyond their limits, more than the same joint of the parent, degrees."""
    max_jerk_m_s3: float = 11666.39
    """Largest jerk of a body, m/s^3: the largest of PARC's mocap."""
    jerk_factor: float = 1.5
    """Jerk up to this multiple of the parent's is allowed too."""
    max_contact_gap_m: float = 0.03
    """Mean distance of bodies labelled in contact from the ground, m."""
    attempts: int = 4
    """How often a variant is made, with new seeds and ever nearer to its parent, before it is
    dropped."""

    def __post_init__(self) -> None:
        """Validate the ranges."""
        for name in self.__dataclass_fields__:
            if name.startswith("max_"):
                check_field(getattr(self, name) > 0, self, name, "> 0")
        check_field(self.jerk_factor >= 0, self, "jerk_factor", ">= 0")
        check_field(self.attempts >= 1, self, "attempts", ">= 1")


@dataclass(frozen=True, kw_only=True)
class AugmentConfig:
    """Spatial augmentation of the initial clips (docs/design/synthesis.md, Initial data)."""

    variants_per_clip: int = 50
    """Variants per clip. Paper 50."""
    padding_m: float = 1.6
    """Terrain kept around the root path, m. PARC slices with 1.2."""
    min_length_s: float = 1.5
    """Crops are never shorter than this (or than the clip), s."""
    recipes: dict[str, ClassRecipe] = field(default_factory=class_recipes)
    """Recipe per class name. A name of several words (``mid_climb``) also goes before the class
    where it stands in the clip's id."""
    flat_recipe: ClassRecipe = field(
        default_factory=lambda: ClassRecipe(kind="boxes", max_length_s=4.0, heading_deg=180.0)
    )
    """Recipe of classes without an entry whose terrain is flat."""
    terrain_recipe: ClassRecipe = field(default_factory=ClassRecipe)
    """Recipe of classes without an entry whose terrain is not flat."""
    clearance_m: float = 0.04
    """Swinging feet are started this high above the terrain, m."""
    smooth_s: float = 0.12
    """Width of the smoothing of the root's lift, s."""
    ik_iterations: int = 60
    """Adam steps that bring the feet to their lifted places before the optimiser."""
    optimizer: OptimizerConfig = field(
        default_factory=lambda: OptimizerConfig(
            w_penetration=100.0,
            w_contact=100.0,
            w_sliding=1000.0,
            w_body_constraint=0.0,
            w_jerk=100.0,
            w_joint_limit=10.0,
            iterations=300,
            lr=0.002,
            lr_final=0.0001,
        )
    )
    """Adaptation to the new terrain. PARC: the same weights but no jerk and no joint limits, 1000
    iterations (vaulting 2000) of 0.001 from the unadapted motion."""
    quality: VariantQuality = field(default_factory=VariantQuality)
    """Which variants are kept."""
    gallery: int = 400
    """Most variants that the gallery page shows; the table lists all."""

    def __post_init__(self) -> None:
        """Validate the ranges."""
        check_field(self.variants_per_clip >= 0, self, "variants_per_clip", ">= 0")
        check_field(self.padding_m > 0, self, "padding_m", "> 0 m")
        check_field(self.min_length_s > 0, self, "min_length_s", "> 0 s")
        check_field(self.ik_iterations >= 0, self, "ik_iterations", ">= 0")
        check_field(self.smooth_s > 0, self, "smooth_s", "> 0 s")
        check_field(self.gallery >= 0, self, "gallery", ">= 0")


def published_augmentation() -> AugmentConfig:
    """Augmentation with the weights, steps and ranges of the published code, 50 per clip.

    No extents are changed and neither jerk nor joint limits cost anything. That variants are
    judged, and that the optimiser starts from a lifted motion, stays.
    """
    recipes = {
        name: replace(recipe, extent_scale=(1.0, 1.0), grow_cells=(0, 0))
        for name, recipe in class_recipes().items()
    }
    optimizer = OptimizerConfig(
        w_penetration=100.0,
        w_contact=100.0,
        w_sliding=1000.0,
        w_body_constraint=0.0,
        w_jerk=0.0,
        iterations=1000,
    )
    return AugmentConfig(variants_per_clip=50, recipes=recipes, optimizer=optimizer)


@dataclass(frozen=True, kw_only=True)
class SynthesisConfig:
    """Everything between a terrain and a corrected kinematic motion."""

    planner: PlannerConfig = field(default_factory=PlannerConfig)
    """Paths over terrains."""
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    """Candidates along paths."""
    selection: SelectionConfig = field(default_factory=SelectionConfig)
    """Which candidates are kept."""
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    """Kinematic optimisation of the kept ones."""
    hesitation: HesitationConfig = field(default_factory=HesitationConfig)
    """Removal of hesitations afterwards."""
    slice_padding_m: float = 1.2
    """Terrain kept around a finished motion, m. PARC 1.2."""
    mirror: bool = True
    """Whether mirrored copies are kept too. PARC true."""
