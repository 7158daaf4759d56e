"""Tensor PPO on RLlib."""
