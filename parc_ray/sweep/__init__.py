"""Sweeps over the loop or over one of its stages, on Ray Tune."""
