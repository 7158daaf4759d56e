"""Clips: validation messages, provenance round trip."""

from __future__ import annotations

import json

import pytest
import torch

from parc_ray.errors import InputError
from parc_ray.motion.clip import Provenance, validate_clip
from tests.motion.motions import make_clip


def test_a_good_clip_passes_and_knows_its_length(character):
    clip = make_clip(character, 31)
    validate_clip(clip, character, min_frames=16)
    assert clip.num_frames == 31
    assert clip.duration_s == pytest.approx(1.0)


def broken_nan(clip):
    clip.frames.dof[7, 3] = torch.nan


def broken_infinite(clip):
    clip.frames.root_pos[4, 0] = torch.inf


def broken_quaternion(clip):
    clip.frames.root_rot[5] *= 1.002


def broken_contacts(clip):
    clip.frames.contacts[0, 0] = 1.2


def broken_joint_count(clip):
    clip.frames.dof = clip.frames.dof[:, :-1]


def broken_lengths(clip):
    clip.frames.root_rot = clip.frames.root_rot[:-1]


def broken_batch(clip):
    clip.frames = clip.frames[None]


def broken_fps(clip):
    clip.fps = 0.0


def broken_fps_nan(clip):
    clip.fps = float("nan")


def broken_length(clip):
    clip.frames = clip.frames.time(0, 9)


def broken_loop(clip):
    clip.loop = "bounce"


def broken_weight(clip):
    clip.weight = -1.0


def broken_terrain(clip):
    clip.terrain.heights[0, 0] = torch.nan


def broken_path(clip):
    clip.path_nodes = torch.zeros(4, 2)


@pytest.mark.parametrize(
    ("breaks", "says"),
    [
        (broken_nan, "dof has NaN or infinite numbers in 1 frames, first frame 7"),
        (broken_infinite, "root_pos has NaN"),
        (broken_quaternion, "root_rot is not a unit quaternion .* frame 5"),
        (broken_contacts, "contacts lie in"),
        (broken_joint_count, "dof has shape"),
        (broken_lengths, "root_rot has shape"),
        (broken_batch, "root_pos has shape"),
        (broken_fps, "fps is 0"),
        (broken_fps_nan, "fps is nan"),
        (broken_length, "9 frames; at least 16"),
        (broken_loop, "loop is 'bounce'"),
        (broken_weight, "weight is -1"),
        (broken_terrain, "terrain"),
        (broken_path, "path_nodes has shape"),
    ],
)
def test_bad_clips_are_refused_in_one_line_that_names_clip_and_field(person, breaks, says):
    clip = make_clip(person)
    breaks(clip)
    with pytest.raises(InputError, match=says) as caught:
        validate_clip(clip, person, min_frames=16)
    assert str(caught.value).startswith("clip 'clip'")
    assert "\n" not in str(caught.value)


def test_another_characters_clip_is_refused(person, waddler):
    with pytest.raises(InputError, match="waddler with 9 bodies and 14 dofs"):
        validate_clip(make_clip(person), waddler)


def test_slightly_rounded_quaternions_are_accepted(person):
    clip = make_clip(person)
    clip.frames.root_rot *= 1.0005
    validate_clip(clip, person)


def test_provenance_round_trips_through_json():
    provenance = Provenance(
        source="sample",
        licence="MIT",
        take="walk",
        iteration=2,
        parents=("a", "b"),
        seeds={"terrain": 7},
        hashes={"generator": "ab12"},
        maker="tracker",
        class_name="walk",
    )
    assert Provenance.from_dict(json.loads(json.dumps(provenance.to_dict()))) == provenance
    assert Provenance.from_dict({}) == Provenance()


def test_provenance_refuses_what_it_does_not_know():
    with pytest.raises(InputError, match="maker 'wizard'"):
        Provenance(maker="wizard")  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="unknown fields colour"):
        Provenance.from_dict({"colour": "red"})
