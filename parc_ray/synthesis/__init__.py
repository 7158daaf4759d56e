"""From terrains to kinematic motions: paths, roll-outs, selection, optimisation (floor 1)."""
