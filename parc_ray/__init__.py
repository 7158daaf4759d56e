"""PARC-Ray: terrain-aware motion generation and tracking, iterated, on Ray.

Physics-based Augmentation with Reinforcement learning for Character controllers (PARC; Xu, Shi,
Yin, Peng, SIGGRAPH 2025) as an experiment platform.
"""

from __future__ import annotations

__version__ = "0.1.0"
