"""Where feet and hands bear on something, found from the motion alone (docs/design/data.md).

A foot rests where the lowest point of its sole hardly moves while the sole faces down; a hand rests
where it hardly moves while no foot does and the body goes on moving. T frames, P points; world
frame, metres, seconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from parc_ray.character import rotations as rot
from parc_ray.character.character import Character
from parc_ray.character.geometry import Geom
from parc_ray.character.surface import place_points, sole_points


@dataclass(frozen=True, kw_only=True)
class EventConfig:
    """When a foot or hand counts as resting."""

    foot_speed: float = 0.45
    """m/s, greatest speed of the lowest point of a resting sole."""
    sole_up: float = 0.6
    """Least z component of a resting sole's normal; keeps toes on walls out."""
    foot_min_s: float = 0.06
    """s, shortest rest of a foot."""
    height_quantile: float = 0.35
    """Quantile of the lowest point's heights during a rest that is taken as the ground's height."""
    sole_tolerance: float = 0.04
    """m, points of the sole this close to the ground belong to the footprint."""
    sole_share: float = 0.5
    """Least share of the sole on the ground over a rest; a toe on a wall has a third."""
    hand_speed: float = 1.0
    """m/s, greatest speed of a bearing hand."""
    hand_still: float = 0.2
    """m/s, its slowest moment is slower than this (an arm that swings against the run is not)."""
    hand_min_s: float = 0.075
    """s, shortest rest of a hand."""
    hand_reach: float = 1.15
    """m, how far above the root a bearing hand may be (hanging by the hands)."""
    root_speed: float = 0.25
    """m/s, the root moves at least this fast while a hand bears (a waving hand does not count)."""
    flight_speed: float = 1.0
    """m/s, both feet move faster than this in flight."""
    hold_s: float = 0.15
    """s, a hand that rests this long while the feet are slow holds the body (it hangs)."""
    fall_accel: float = 6.5
    """m/s^2, a body that accelerates downwards faster than this is borne by nothing."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ContactEvent:
    """One rest of a foot or hand."""

    kind: Literal["foot", "hand"]
    """What rests."""
    height: float
    """m, height of what it rests on."""
    xy: np.ndarray
    """(K, 2) m, points that rest."""
    start: int
    """First frame."""
    stop: int
    """Frame after the last."""
    in_flight: bool = False
    """Hand only: both feet were moving fast."""
    bears: bool = True
    """Hand only: it bore the body, in flight or for long, while nothing else did."""
    heading: tuple[float, float] = (1.0, 0.0)
    """Hand only: unit vector of the horizontal travel of the root while it rested."""


def runs(mask: np.ndarray, shortest: int = 1) -> Iterator[tuple[int, int]]:
    """Start and stop (exclusive) of every run of True of at least ``shortest`` in a (T,) mask."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], mask.astype(np.int8), [0]))))
    for start, stop in zip(edges[::2], edges[1::2], strict=True):
        if stop - start >= shortest:
            yield int(start), int(stop)


def speeds(points: np.ndarray, rate_hz: float) -> np.ndarray:
    """Speed (T, ...) m/s of points (T, ..., 3) by central differences."""
    return np.linalg.norm(np.gradient(points, 1.0 / rate_hz, axis=0), axis=-1)


def bottom_points(geom: Geom, body_pos: Tensor, body_rot: Tensor, samples: int = 6) -> Tensor:
    """Lowest points (T, K, 3) of a geom along its length, for bodies at (T, 3) and (T, 4).

    Spheres and capsules: points of the axis moved down by the radius; boxes: a grid of points on
    all six faces.
    """
    if geom.kind == "box":
        line = torch.linspace(-1.0, 1.0, samples, dtype=torch.float64)
        grid = torch.cartesian_prod(line, line, line)
        grid = grid[(grid.abs() == 1.0).any(-1)]
        local, radius = geom.to_body(grid * grid.new_tensor(geom.size)), 0.0
    else:
        ends, radius = geom.ends(), geom.radius
        line = torch.linspace(0.0, 1.0, samples, dtype=torch.float64)[:, None]
        local = ends[0] + line * (ends[1] - ends[0])
    placed = rot.quat_rotate(body_rot[:, None], local.to(body_rot)) + body_pos[:, None]
    return placed - placed.new_tensor([0.0, 0.0, radius])


def foot_events(
    character: Character, body_pos: Tensor, body_rot: Tensor, rate_hz: float, config: EventConfig
) -> tuple[list[ContactEvent], np.ndarray]:
    """Rests of all feet.

    Args:
        character: the character.
        body_pos: (T, B, 3) m.
        body_rot: (T, B, 4).
        rate_hz: frames per second.
        config: thresholds.

    Returns:
        The rests, and a mask (T,) of frames in which any foot rests.
    """
    events: list[ContactEvent] = []
    supported = np.zeros(len(body_pos), dtype=bool)
    shortest = max(2, round(config.foot_min_s * rate_hz))
    points = sole_points(character)
    placed = place_points(points, body_pos, body_rot).numpy()
    for foot in character.feet:
        sole = placed[:, points.point_ranges[foot]]
        lowest = sole[..., 2].argmin(axis=1)
        frames = np.arange(len(sole))
        speed = speeds(sole, rate_hz)[frames, lowest]
        height = sole[frames, lowest, 2]
        up = rot.quat_rotate(body_rot[:, foot], body_rot.new_tensor([0.0, 0.0, 1.0]))[:, 2].numpy()
        for start, stop in runs((speed < config.foot_speed) & (up > config.sole_up), shortest):
            ground = float(np.quantile(height[start:stop], config.height_quantile))
            part = sole[start:stop].reshape(-1, 3)
            near = np.abs(part[:, 2] - ground) <= config.sole_tolerance
            if near.mean() >= config.sole_share:
                supported[start:stop] = True
                xy = part[near, :2]
                events.append(
                    ContactEvent(kind="foot", height=ground, xy=xy, start=start, stop=stop)
                )
    return events, supported


def hand_events(
    character: Character,
    body_pos: Tensor,
    body_rot: Tensor,
    supported: np.ndarray,
    rate_hz: float,
    config: EventConfig,
) -> list[ContactEvent]:
    """Rests of all hands; shapes as ``foot_events``, ``supported`` (T,) is its second result."""
    pos = body_pos.numpy()
    near_support = np.convolve(supported, np.ones(3), mode="same") > 0
    moving = speeds(pos[:, 0], rate_hz) > config.root_speed
    feet_speed = speeds(pos[:, list(character.feet)], rate_hz).min(axis=1)
    mass = character.body_masses.numpy().astype(np.float64)
    centre = (pos[..., 2] * mass).sum(axis=1) / mass.sum()
    events: list[ContactEvent] = []
    for hand in character.hands:
        geoms = [g for g in character.geoms if g.body == hand]
        bottom = torch.cat(
            [bottom_points(g, body_pos[:, hand], body_rot[:, hand]) for g in geoms], 1
        )
        points = bottom.numpy()
        lowest = points[..., 2].argmin(axis=1)
        point = points[np.arange(len(points)), lowest]
        speed = speeds(pos[:, hand], rate_hz)
        reach = point[:, 2] < pos[:, 0, 2] + config.hand_reach
        bearing = (speed < config.hand_speed) & ~near_support & reach & moving
        for start, stop in runs(bearing, max(1, round(config.hand_min_s * rate_hz))):
            best = start + int(speed[start:stop].argmin())
            if speed[best] > config.hand_still:
                continue
            in_flight = bool(feet_speed[best] > config.flight_speed)
            held = in_flight or stop - start >= config.hold_s * rate_hz
            events.append(
                ContactEvent(
                    kind="hand",
                    height=float(point[best, 2]),
                    xy=point[max(start, best - 1) : min(stop, best + 2), :2],
                    start=start,
                    stop=stop,
                    in_flight=in_flight,
                    bears=held and not _falls(centre, start, stop, rate_hz, config),
                    heading=_heading(pos[:, 0, :2], start, stop, rate_hz),
                )
            )
    return events


def _falls(centre: np.ndarray, start: int, stop: int, rate_hz: float, config: EventConfig) -> bool:
    """Whether the centre of mass (T,) in m falls freely from ``start`` to ``stop``."""
    spare = max(1, round(0.05 * rate_hz))
    part = centre[max(0, start - spare) : stop + spare]
    if len(part) < 5:
        return False
    seconds = np.arange(len(part)) / rate_hz
    return bool(2.0 * np.polyfit(seconds, part, 2)[0] < -config.fall_accel)


def _heading(root_xy: np.ndarray, start: int, stop: int, rate_hz: float) -> tuple[float, float]:
    """Unit vector of the way of the root (T, 2) from a quarter second before to after."""
    spare = max(1, round(0.25 * rate_hz))
    way = root_xy[min(len(root_xy) - 1, stop + spare)] - root_xy[max(0, start - spare)]
    length = float(np.hypot(*way))
    return (float(way[0] / length), float(way[1] / length)) if length > 1e-6 else (1.0, 0.0)
