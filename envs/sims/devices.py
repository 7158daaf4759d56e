"""Which GPU a simulator may use: in Ray's workers the one that Ray gave, elsewhere what is seen.

Ray leaves all GPUs visible to a worker that asked for none, so that visibility alone says nothing.
"""

from __future__ import annotations

import sys


def assigned_gpu() -> str | None:
    """The GPU that Ray gave to this process, the first of several; None outside of Ray's workers.

    A worker without a GPU gets "", so that it does not take one that is another's.
    """
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return None
    if ray.get_runtime_context().worker.mode != ray.WORKER_MODE:
        return None
    gpus = ray.get_gpu_ids()
    return str(gpus[0]) if gpus else ""
