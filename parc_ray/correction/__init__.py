"""From kinematic to physical motions (floor 2)."""
