"""How often clips are drawn, over a growing number of iterations."""

from __future__ import annotations

import pytest

from parc_ray.config import DataConfig
from parc_ray.data.bank import ClipBank
from parc_ray.data.weights import WeightedClip, clip_probabilities, probabilities
from parc_ray.errors import InputError
from parc_ray.motion.clip import Provenance
from parc_ray.recipes import get_recipe
from tests.motion.motions import make_clip


def rows(*specs):
    return [
        WeightedClip(class_name=name, seconds=seconds, iteration=iteration)
        for name, seconds, iteration in specs
    ]


D0 = rows(("walk", 10.0, 0), ("walk", 30.0, 0), ("climb", 5.0, 0))


def grown(iterations, name):
    """D0 and four recordings of five seconds from every iteration, class by ``name(i)``."""
    return [*D0, *(r for i in range(1, iterations + 1) for r in rows(*[(name(i), 5.0, i)] * 4))]


def share_of_initial(clips, **options):
    return float(probabilities(clips, **options)[: len(D0)].sum())


def test_jobs_are_no_classes():
    """Upstream's classes are jobs, and D0 shrinks as 2 / (2 + i); ours keep it."""
    for i in range(1, 9):
        assert share_of_initial(grown(i, lambda i: f"job_{i}")) == pytest.approx(2 / (2 + i))
        assert share_of_initial(grown(i, lambda _: "generated_boxes")) == pytest.approx(2 / 3)


@pytest.mark.parametrize("floor", [0.3, 0.6])
def test_a_floor_holds_and_leaves_the_shares_within_the_groups(floor):
    for i in range(1, 9):
        clips = grown(i, lambda i: f"job_{i}")
        free = probabilities(clips)
        held = probabilities(clips, initial_share=floor)
        n = len(D0)
        assert float(held.sum()) == pytest.approx(1.0)
        assert float(held[:n].sum()) == pytest.approx(max(floor, 2 / (2 + i)))
        for part in (slice(0, n), slice(n, None)):
            a, b = free[part] / free[part].sum(), held[part] / held[part].sum()
            assert a.tolist() == pytest.approx(b.tolist())


def test_worked_numbers():
    clips = [*D0, *rows(("boxes", 7.0, 1))]
    assert probabilities(clips).tolist() == pytest.approx([1 / 12, 1 / 4, 1 / 3, 1 / 3])
    held = probabilities(clips, initial_share=0.8).tolist()
    assert held == pytest.approx([0.1, 0.3, 0.4, 0.2])
    flat = probabilities(clips, class_balance=False, initial_share=0.9).tolist()
    assert flat == pytest.approx([0.2, 0.6, 0.1, 0.1])  # 45 of 52 s become nine tenths


def test_without_one_of_the_groups_there_is_no_floor():
    assert float(probabilities(D0, initial_share=0.5).sum()) == pytest.approx(1.0)
    later = rows(("a", 1.0, 1), ("b", 1.0, 2))
    assert probabilities(later, initial_share=0.5).tolist() == [0.5, 0.5]
    silent = [WeightedClip(class_name="walk", seconds=1.0, weight=0.0), *later]
    assert probabilities(silent, initial_share=0.5).tolist() == [0.0, 0.5, 0.5]


@pytest.mark.parametrize("bad", [-0.1, 1.0, float("nan")])
def test_shares_are_checked(bad):
    with pytest.raises(InputError, match="initial_share"):
        probabilities(D0, initial_share=bad)
    with pytest.raises(InputError, match=r"data\.initial_share"):
        DataConfig(initial_share=bad)


def test_the_bank_draws_by_it(humanoid):
    made = []
    for number, (name, iteration) in enumerate([("walk", 0), ("a", 1), ("b", 2), ("c", 3)]):
        clip = make_clip(humanoid, clip_id=f"c{number}")
        clip.provenance = Provenance(class_name=name, iteration=iteration)
        made.append(clip)
    bank = ClipBank(made, humanoid.skeleton, phases=1, initial_share=0.4)
    assert bank.probabilities.tolist() == pytest.approx([0.4, 0.2, 0.2, 0.2])
    assert clip_probabilities(made).tolist() == pytest.approx([0.25] * 4)


def test_parity_recipes_have_no_floor():
    shares = {name: get_recipe(name).data.initial_share for name in ("quick", "paper", "upstream")}
    assert shares == {"quick": 0.3, "paper": 0.0, "upstream": 0.0}
