from __future__ import annotations

import dataclasses

import pytest
import torch

from algorithms.diffusion.batch import BatchMaker, estimate_stats
from algorithms.diffusion.denoiser import Denoiser
from algorithms.diffusion.objective import Objective
from algorithms.diffusion.schedule import cosine_alpha_bar
from algorithms.diffusion.train import train_local
from parc_ray.motion.features import FeatureLayout
from tests.algorithms.diffusion.conftest import with_train

CPU = torch.device("cpu")


@pytest.fixture
def setup(humanoid, bank, config):
    stats = estimate_stats(bank, humanoid, config)
    batch = BatchMaker(bank, humanoid, config, stats).draw(torch.Generator().manual_seed(4), 8)
    net = Denoiser(config, FeatureLayout(humanoid.skeleton).size, config.grid.shape).eval()
    return stats, batch, net


def test_min_snr_weights_by_hand(humanoid, config, setup):
    """Gamma 5 of T = 11: clean levels count fully, the noisiest hardly; one sample at a time."""
    stats, batch, net = setup
    loss = dataclasses.replace(config.loss, min_snr_gamma=5.0)
    weighed = Objective(humanoid, dataclasses.replace(config, loss=loss), stats, CPU)
    plain = Objective(humanoid, config, stats, CPU)
    abar = cosine_alpha_bar(11)
    for level in (0, 4, 10):
        same = dataclasses.replace(batch, t=torch.full_like(batch.t, level))
        ratio = float(weighed(net, same)[0]) / float(plain(net, same)[0])
        snr = float(abar[level] / (1 - abar[level]))
        assert ratio == pytest.approx(min(snr, 5.0) / 5.0, rel=1e-4), level
    assert float(abar[0] / (1 - abar[0])) > 5.0


def test_bfloat16_stays_close_and_is_used(humanoid, config, setup):
    """The network computes in bfloat16, losses in float32; they agree to its three digits."""
    stats, batch, net = setup
    kinds = []

    def network(x, t, cond):
        answer = net(x, t, cond)
        kinds.append(answer.dtype)
        return answer

    low = Objective(humanoid, with_train(config, precision="bfloat16"), stats, CPU)
    loss, shares = low(network, batch)
    reference, _ = Objective(humanoid, config, stats, CPU)(network, batch)
    assert kinds == [torch.bfloat16, torch.float32]
    assert loss.dtype == torch.float32
    assert all(value.dtype == torch.float32 for value in shares.values())
    assert float(loss) == pytest.approx(float(reference), rel=0.03)
    assert float(loss) != float(reference)


def test_trains_in_bfloat16(tmp_path, humanoid, bank, config):
    """Weights stay float32; the loss falls as it does in float32."""
    rows: dict[str, list[dict[str, float]]] = {}
    for precision in ("float32", "bfloat16"):
        kept = rows.setdefault(precision, [])
        settings = with_train(
            config, precision=precision, steps=40, batch_size=16, log_every=10, report_every=40
        )
        result = train_local(bank, humanoid, settings, tmp_path / precision, callback=kept.append)
        assert result.metrics["steps"] == 40
    last = {name: kept[-1]["loss"] for name, kept in rows.items()}
    assert last["bfloat16"] < 0.6 * rows["bfloat16"][0]["loss"]
    assert last["bfloat16"] == pytest.approx(last["float32"], rel=0.1)
