"""PARC-Ray: terrain-aware motion generation and tracking, iterated, on Ray.

Physics-based Augmentation with Reinforcement learning for Character controllers (PARC; Xu, Shi,
Yin, Peng, SIGGRAPH 2025) as an experiment platform.
"""

from __future__ import annotations

import os

# OpenMP threads that wait in a busy loop starve each other where cores are few or shared. Read once
# when PyTorch loads its threads, so it has to be said before; local Ray workers inherit it.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

__version__ = "0.1.0"
