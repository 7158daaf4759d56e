"""Characters: rotations, skeleton, forward kinematics and surface points (floor 0)."""
