"""Families of random terrain, one module each: ``(rng, spec) -> Heightfield``."""
