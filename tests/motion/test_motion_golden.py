"""Points, kinematics and labels on real recordings, against figures of the published code."""

from __future__ import annotations

import pytest
import torch

from parc_ray.character.kinematics import fk_from_dof
from parc_ray.character.surface import place_points, surface_points
from parc_ray.data.importers import load_raw
from parc_ray.motion.contacts import label_contacts
from parc_ray.motion.frames import MotionFrames
from parc_ray.terrain.distance import outside_distance, penetration_depth
from parc_ray.terrain.heightfield import HeightfieldBatch

# measured with the published code: TPL, TCL with raw labels, TCL with labels above one half
GOLDEN = {
    "civilization": (0.018, 2.193, 0.065),
    "dec2024_teaser_717_1_opt_dm": (0.125, 0.647, 0.647),
    "sfu": (2.168, 0.185, 0.056),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_distances_of_published_points_give_the_published_losses(person, shared_data, name):
    raw = load_raw(shared_data / "formats" / "ms" / f"{name}.pkl", person)
    assert raw.terrain is not None
    assert raw.contacts is not None
    points = surface_points(person, "published")
    placed = place_points(
        points, *fk_from_dof(person.skeleton, raw.root_pos, raw.root_rot, raw.dof)
    )
    terrain = HeightfieldBatch.stack([raw.terrain])
    out = outside_distance(placed[None], terrain, off_grid="code", exact=True)[0]
    depth = penetration_depth(placed[None], terrain, off_grid="code", exact=True)
    nearest = torch.stack([out[:, span].amin(-1) for span in points.point_ranges], -1)
    tpl, tcl, tcl_hard = GOLDEN[name]
    assert float(depth.sum()) == pytest.approx(tpl, abs=6e-4)
    assert float((raw.contacts * nearest).sum()) == pytest.approx(tcl, abs=1.1e-3)
    assert float(nearest[raw.contacts > 0.5].sum()) == pytest.approx(tcl_hard, abs=1e-3)


def test_labels_agree_with_a_physics_recording(person, shared_data):
    raw = load_raw(shared_data / "formats" / "ms" / "dec2024_teaser_717_1_opt_dm.pkl", person)
    assert raw.terrain is not None
    assert raw.contacts is not None
    frames = MotionFrames(raw.root_pos, raw.root_rot, raw.dof, raw.contacts)
    labels = label_contacts(person, frames, raw.terrain)
    for body in (*person.feet, *person.hands):
        agreement = (labels[:, body] > 0.5) == (raw.contacts[:, body] > 0.5)
        assert float(agreement.float().mean()) > 0.93
