from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from algorithms.diffusion import denoiser
from algorithms.diffusion.denoiser import attend
from algorithms.diffusion.dropout import Dropout, dropout


@pytest.mark.parametrize("p", [0.05, 0.1, 0.5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_share_and_scale(p, dtype):
    """A binomial share of zeros (within five standard deviations), the rest scaled by 1/(1-p)."""
    n = 400_001  # not a multiple of four
    out = dropout(torch.ones(n, dtype=dtype), p, training=True).float()
    zeros = float((out == 0).float().mean())
    assert abs(zeros - p) < 5 * math.sqrt(p * (1 - p) / n)
    kept = out[out != 0]
    assert len(kept.unique()) == 1
    rel = 1e-4 if dtype == torch.float32 else 8e-3
    assert float(kept[0]) == pytest.approx(1 / (1 - p), rel=rel)


def test_neighbours_are_independent():
    """The four elements of one 64-bit draw share no bits: pairs are dropped with p squared."""
    p, n = 0.3, 400_000
    gone = (dropout(torch.ones(n), p, training=True) == 0).view(-1, 4).float()
    covariance = torch.cov(gone.T)
    off = covariance - covariance.diag().diag()
    assert float(off.abs().max()) < 5 * p * (1 - p) / math.sqrt(n / 4)


def test_gradient_passes_where_values_do():
    x = torch.randn(50, 40, dtype=torch.float64, requires_grad=True)
    out = dropout(x, 0.25, training=True)
    (gradient,) = torch.autograd.grad(out.sum(), x)
    torch.testing.assert_close(gradient * x, out)
    assert 0 < int((gradient == 0).sum()) < x.numel()


def test_seeded_off_in_eval_and_at_zero():
    x = torch.randn(100)
    torch.manual_seed(5)
    first = dropout(x, 0.5, training=True)
    torch.manual_seed(5)
    assert torch.equal(first, dropout(x, 0.5, training=True))
    assert not torch.equal(first, dropout(x, 0.5, training=True))
    assert dropout(x, 0.5, training=False) is x
    assert dropout(x, 0.0, training=True) is x
    assert Dropout(0.5).eval()(x) is x


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_written_out_attention_equals_the_fused_one(monkeypatch, dtype):
    """Values and gradients, with the dropout itself taken out."""
    monkeypatch.setattr(denoiser, "dropout", lambda x, p, training: x)
    q, k, v = (torch.randn(2, 4, 7, 8, dtype=dtype, requires_grad=True) for _ in range(3))
    visible = (torch.rand(2, 1, 1, 7) > 0.4).index_fill(-1, torch.tensor([0]), True)
    tolerance = {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 0, "atol": 0.1}
    ours = attend(q, k, v, visible, 0.1)
    wide = [x.detach().float().requires_grad_() for x in (q, k, v)]
    theirs = F.scaled_dot_product_attention(*wide, attn_mask=visible)
    torch.testing.assert_close(ours.float(), theirs, **tolerance)
    weight = torch.randn_like(theirs)
    got = torch.autograd.grad((ours.float() * weight).sum(), [q, k, v])
    want = torch.autograd.grad((theirs * weight).sum(), wide)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a.float(), b, **tolerance)


def test_attention_weights_are_dropped():
    """With equal values, an output is the kept share of the weights: 1 in the mean, but spread."""
    q, k = torch.randn(64, 4, 9, 8, requires_grad=True), torch.randn(64, 4, 9, 8)
    out = attend(q, k, torch.ones(64, 4, 9, 8), None, 0.2)[..., 0].detach()
    assert float(out.mean()) == pytest.approx(1.0, abs=0.05)
    assert float(out.std()) > 0.1
