"""Tracks clips with an exported policy: numpy, onnxruntime and mujoco, neither Ray nor torch."""
