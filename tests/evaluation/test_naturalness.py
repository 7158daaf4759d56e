"""The filter: real clips pass, broken ones do not, every rejection has its reason."""

from __future__ import annotations

import io
from dataclasses import replace

import pandas as pd
import pytest
import torch

from parc_ray.data.manifest import Manifest
from parc_ray.data.storage import Storage
from parc_ray.data.store import read_clips
from parc_ray.errors import InputError
from parc_ray.evaluation.limits import NaturalnessConfig
from parc_ray.evaluation.naturalness import NaturalnessFilter, clip_figures
from parc_ray.motion.clip import Provenance
from parc_ray.stages.merge import STAGE
from tests.envs.helpers import sway_clip
from tests.evaluation.runs import tiny_config
from tests.stages.helpers import put_clips, run_body

CONFIG = NaturalnessConfig(enabled=True)


@pytest.fixture(scope="module")
def initial(humanoid):
    return [
        sway_clip(humanoid, 61, f"d{k}", amplitude=0.1 + 0.02 * k, speed=0.02 * k) for k in range(8)
    ]


@pytest.fixture(scope="module")
def fitted(humanoid, initial):
    return NaturalnessFilter.fit(initial, humanoid, CONFIG)


def changed(clip, **tensors):
    return replace(clip, clip_id="broken", frames=replace(clip.frames, **tensors))


def jittered(clip):
    noise = 0.15 * torch.randn(clip.frames.dof.shape, generator=torch.Generator().manual_seed(1))
    return changed(clip, dof=clip.frames.dof + noise)


def jumping(clip):
    pos = clip.frames.root_pos.clone()
    pos[30:, 0] += 1.0
    return changed(clip, root_pos=pos)


def flickering(clip):
    contacts = clip.frames.contacts.clone()
    contacts[::2] = 0.0
    return changed(clip, contacts=contacts)


def skating(clip):
    pos = clip.frames.root_pos.clone()
    pos[:, 0] += 2.0 * torch.arange(len(pos)) / clip.fps
    return changed(clip, root_pos=pos)


def folded(clip):
    dof = clip.frames.dof.clone()
    dof[:, :6] = 2.0
    return changed(clip, dof=dof)


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (jittered, "jerk"),
        (jumping, "jerk"),
        (flickering, "contact_chatter_hz"),
        (skating, "foot_slide_mps"),
        (folded, "surprise"),
    ],
)
def test_broken_clips_are_rejected_for_what_is_broken(fitted, humanoid, initial, broken, reason):
    said = fitted.judge(broken(initial[3]), humanoid).reasons
    assert any(line.startswith(reason) for line in said), said
    assert all(" is above " in line for line in said)


def test_clips_of_d0_and_new_ones_like_them_pass(fitted, humanoid, initial):
    assert fitted.rejected_share <= CONFIG.max_rejected_share
    assert not [c for c in initial if fitted.judge(c, humanoid).reasons]
    other = sway_clip(humanoid, 61, "other", amplitude=0.17, speed=0.05)
    assert fitted.judge(other, humanoid).reasons == ()


def test_limits_widen_until_enough_of_d0_pass(humanoid, initial):
    tight = NaturalnessConfig(enabled=True, quantile=0.5, slack=1.0, max_rejected_share=0.0)
    found = NaturalnessFilter.fit(initial, humanoid, tight)
    assert found.rejected_share == 0.0
    loose = NaturalnessFilter.fit(initial, humanoid, replace(tight, max_rejected_share=0.99))
    assert loose.rejected_share > 0.0
    assert all(loose.limits[name] <= found.limits[name] for name in found.limits)


def test_real_clips_pass(shared_data, humanoid):
    from parc_ray.data.importers import import_path

    clips = import_path(shared_data / "parc_clips", humanoid)
    found = NaturalnessFilter.fit(clips, humanoid, CONFIG)
    rejected = [c.clip_id for c in clips if found.judge(c, humanoid).reasons]
    assert len(rejected) <= 0.02 * len(clips) or found.rejected_share <= 0.02
    bad = [f(c) for c in clips[:6] for f in (jittered, flickering)]
    assert sum(bool(found.judge(c, humanoid).reasons) for c in bad) >= 11


def test_figures_by_hand(humanoid):
    clip = sway_clip(humanoid, 31, amplitude=0.0)
    contacts = clip.frames.contacts
    contacts[10:20, humanoid.feet[0]] = 0.0  # two changes of one of two feet in one second
    found = clip_figures(clip, humanoid)
    assert found["contact_chatter_hz"] == pytest.approx(1.0)
    assert found["tracking_error_m"] != found["tracking_error_m"]  # a clip nobody recorded
    assert found["power_w"] != found["power_w"]
    clip.metrics = {"body_global_m": 0.07}
    assert clip_figures(clip, humanoid)["tracking_error_m"] == 0.07


def test_what_d0_does_not_have_is_not_judged(fitted, humanoid, initial):
    assert "tracking_error_m" not in fitted.limits
    clip = replace(initial[2], metrics={"body_global_m": 9.0})
    assert fitted.judge(clip, humanoid).reasons == ()


def test_merge_leaves_out_what_is_unnatural_and_lists_it(tmp_path, humanoid, initial):
    made = Provenance(iteration=1)
    new = [replace(jittered(initial[1]), provenance=made), replace(initial[2], clip_id="fine")]
    inputs = {
        "dataset": put_clips(tmp_path, "it_00/merge", initial, humanoid),
        "motions": put_clips(tmp_path, "it_01/record", new, humanoid),
    }
    config = replace(tiny_config(tmp_path), naturalness=CONFIG)
    done = run_body(tmp_path, "merge", STAGE.body, inputs, config, 1)
    storage = Storage.from_uri(tmp_path)
    ids = [
        c.clip_id for c in read_clips(storage, Manifest.load(storage, "it_01/merge/manifest.json"))
    ]
    assert ids == [*(c.clip_id for c in initial), "fine"]
    assert (done.metrics["rejected_clips"], done.metrics["new_clips"]) == (1.0, 1.0)
    table = pd.read_csv(io.BytesIO(storage.read_bytes("it_01/merge/naturalness.csv")))
    assert table["clip"].tolist() == ["broken", "fine", "(limit)"]
    assert "jerk" in table["reasons"][0]
    assert table["reasons"].isna().tolist() == [False, True, True]


def test_a_filter_that_is_off_changes_no_marker():
    on, off = (replace(tiny_config("runs"), naturalness=n) for n in (CONFIG, NaturalnessConfig()))
    assert STAGE.section(off, 1) == {"character": "humanoid"}
    assert STAGE.section(on, 0) == STAGE.section(off, 0)
    assert STAGE.section(on, 1)["naturalness"] == CONFIG
    with pytest.raises(InputError, match=r"naturalness.quantile: 0.2 is out of range"):
        NaturalnessConfig(quantile=0.2)
