"""Settings of the kinematic optimisation; where ours differ: docs/design/synthesis.md."""

from __future__ import annotations

from dataclasses import dataclass

from parc_ray.synthesis.checks import check_field


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """Kinematic optimisation (PARC, eq. 15). Weights are those for generated motions."""

    w_root_pos: float = 1.0
    """Squared distance of root positions to the source. PARC 1."""
    w_root_rot: float = 10.0
    """Squared angle of root rotations to the source. PARC 10."""
    w_joint_rot: float = 1.0
    """Squared angle of joint rotations to the source. PARC 1."""
    w_smoothness: float = 10.0
    """Squared change of body velocities against the source. PARC 10."""
    w_penetration: float = 1000.0
    """Depth of surface points below the terrain. PARC 1000, first augmentation 100."""
    w_contact: float = 1000.0
    """Distance of contact bodies to the terrain. PARC 1000, first augmentation 100."""
    w_sliding: float = 10.0
    """Velocity change of contact bodies, pseudo-Huber. PARC 10, first augmentation 1000."""
    w_body_constraint: float = 1000.0
    """Hands and feet held at one surface point per contact run. PARC 1000, augmentation 0."""
    w_jerk: float = 1000.0
    """Third differences of body positions above the limit. PARC 1000, augmentation 0."""
    w_joint_limit: float = 0.0
    """Joint coordinates beyond their limits, rad. PARC has no such term (0)."""
    w_foot_slide: float = 0.0
    """Way of planted soles (label above 0.5) from frame to frame. PARC has no such term (0)."""
    w_foot_swing: float = 0.0
    """What swinging feet (no label above 0.5 within two frames) lack to ``swing_clearance_m``.
    PARC has no such term (0)."""
    swing_clearance_m: float = 0.03
    """Height of swinging feet above the ground that costs nothing, m: more than the 2 cm up to
    which a body counts as touching."""
    contact_floor: float = 0.05
    """Contact labels up to this are no contact (and cost no search). PARC 0."""
    jerk_limit_m_s3: float = 1000.0
    """Jerk that costs nothing, m/s^3. PARC 1000."""
    iterations: int = 3000
    """Upper limit of Adam steps. PARC 3000 (first augmentation 1000)."""
    lr: float = 0.001
    """Adam step size, rad or m. PARC 0.001."""
    lr_final: float = 0.001
    """Step size at the last iteration (cosine in between). PARC constant."""
    beta_2: float = 0.999
    """Adam's memory of squared gradients. PARC 0.999."""
    drop_momentum: bool = False
    """Drop momentum that points against the gradient, variable by variable. PARC false."""
    restart_share: float = 0.0
    """Forget Adam's moments after this share of the iterations; 0 never. PARC 0."""
    knot_frames: int = 0
    """Adam also moves knots that are so many frames apart, interpolated in between; 0: frames
    alone. PARC 0."""
    tolerance: float = 0.0
    """Stop a motion when its loss fell by less than this share in ``patience`` steps; 0 never
    stops early. PARC 0."""
    patience: int = 100
    """Steps over which ``tolerance`` is judged."""
    window: int = 2
    """Cells on each side searched for the nearest column; distances below window * cell size are
    exact. Published code: all cells of a patch."""
    batch_frames: int = 4096
    """Upper limit of padded frames optimised together; bounds the memory."""

    def __post_init__(self) -> None:
        """Validate the ranges."""
        for name in self.__dataclass_fields__:
            if name.startswith("w_"):
                check_field(getattr(self, name) >= 0, self, name, ">= 0")
        check_field(self.swing_clearance_m >= 0, self, "swing_clearance_m", ">= 0 m")
        check_field(self.iterations >= 0, self, "iterations", ">= 0")
        check_field(self.lr > 0, self, "lr", "> 0")
        check_field(0 < self.lr_final <= self.lr, self, "lr_final", "0 < lr_final <= lr")
        check_field(0 < self.beta_2 < 1, self, "beta_2", "above 0 and below 1")
        check_field(0 <= self.restart_share < 1, self, "restart_share", "0 <= share < 1")
        check_field(self.knot_frames >= 0, self, "knot_frames", ">= 0 (0 and 1 mean none)")
        check_field(0 <= self.tolerance < 1, self, "tolerance", "0 <= tolerance < 1")
        check_field(self.patience >= 1, self, "patience", ">= 1")
        check_field(self.window >= 1, self, "window", ">= 1")
        check_field(self.batch_frames >= 1, self, "batch_frames", ">= 1")


def own_optimizer(iterations: int = 200) -> OptimizerConfig:
    """This project's settings: PARC's terms and weights, joint limits, planted and swinging soles.

    Large steps that shrink, on frames and on knots, get further in 100 than PARC's small constant
    ones in 500; only labels that count as contact pull to the ground (docs/design/synthesis.md,
    Kinematic optimiser).
    """
    return OptimizerConfig(
        w_joint_limit=10.0,
        w_foot_slide=1000.0,
        w_foot_swing=100.0,
        contact_floor=0.5,
        iterations=iterations,
        lr=0.006,
        lr_final=0.0002,
        beta_2=0.95,
        drop_momentum=True,
        restart_share=0.5,
        knot_frames=8,
    )
