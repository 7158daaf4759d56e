"""Isaac Gym behind a socket and shared memory, for its own interpreter (Python 3.8).

Standard library, NumPy, PyTorch and isaacgym only; nothing of the project is imported here. The
project's side is `envs.sims.isaacgym_bridge`, which shares `layout` and `wire` with it.
"""
