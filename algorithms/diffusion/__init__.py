"""Terrain-conditioned motion diffusion."""
