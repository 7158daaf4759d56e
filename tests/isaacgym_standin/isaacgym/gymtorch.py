"""Between the engine's tensor descriptions and torch's tensors, which share their memory."""

import torch

from .gymapi import Tensor


def wrap_tensor(gym_tensor, offsets=None, counts=None):
    """A torch tensor on the engine's memory."""
    if offsets is not None or counts is not None:
        raise TypeError("the stand-in wraps whole tensors")
    return torch.from_numpy(gym_tensor.array)


def unwrap_tensor(torch_tensor):
    """The engine's description of a torch tensor."""
    if not torch_tensor.is_contiguous():
        raise RuntimeError("Input tensor must be contiguous")
    tensor = Tensor()
    tensor.array = torch_tensor.numpy()
    return tensor
