"""Sampling model-predictive control."""
