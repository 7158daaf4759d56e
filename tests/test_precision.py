from __future__ import annotations

import pytest
import torch

from algorithms.diffusion.config import SamplingConfig, TrainConfig
from parc_ray import precision
from parc_ray.errors import InputError
from parc_ray.precision import bf16_is_native, low_precision

CPU = torch.device("cpu")


@pytest.fixture
def probe_again():
    bf16_is_native.cache_clear()
    yield
    bf16_is_native.cache_clear()


@pytest.mark.parametrize(("amx", "avx512"), [(False, False), (True, False), (False, True)])
def test_auto_asks_the_processor(monkeypatch, probe_again, amx, avx512):
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512)
    assert low_precision("auto", CPU) is (amx or avx512)
    assert low_precision("bfloat16", CPU) is True
    assert low_precision("float32", CPU) is False


def test_without_probes_it_is_float32(monkeypatch, probe_again):
    for name in ("_is_amx_tile_supported", "_is_avx512_bf16_supported"):
        monkeypatch.delattr(torch.cpu, name)
    assert bf16_is_native("cpu") is False
    assert bf16_is_native("meta") is False


def test_the_probes_exist_in_this_torch():
    """Should a release drop them, `auto` would mean float32 everywhere without a word."""
    assert isinstance(torch.cpu._is_amx_tile_supported(), bool)
    assert isinstance(torch.cpu._is_avx512_bf16_supported(), bool)


@pytest.mark.parametrize("kind", [SamplingConfig, TrainConfig])
def test_unknown_arithmetic_is_refused(kind):
    for name in precision.PRECISIONS:
        assert kind(precision=name).precision == name
    with pytest.raises(InputError, match=r"precision.*float16.*float32 or bfloat16 or auto"):
        kind(precision="float16")
