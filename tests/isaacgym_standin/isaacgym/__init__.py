"""Stands in for NVIDIA's package in tests: its calls, tensor layouts and habits, MuJoCo's physics.

What it is faithful in, because a caller can get it wrong: it must be imported before torch; it
talks on standard output; its tensors are old until they are refreshed; on the CPU nothing moves
before ``fetch_results``; states are set by rows that indices choose, int32 and once per step;
quaternions are xyzw and root velocities those of the centre of mass; contact forces include those
between bodies; dofs do nothing until they get a drive mode; triangles are solid from their front.
Where the original would quietly do harm (numbers that are not finite, wrong types), it raises.
"""

import os
import sys

IDLE = os.environ.get("ISAACGYM_STANDIN") == "idle"
"""Nothing is simulated: what was set stays, so that only a caller's own cost is left."""

if "torch" in sys.modules:
    raise ImportError(
        "PyTorch was imported before isaacgym modules.  Please import torch after isaacgym modules."
    )
print("Importing module 'gym_38' (stand-in)")
