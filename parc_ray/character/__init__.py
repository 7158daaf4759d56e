"""The character: rotations, skeleton, kinematics and surface points (floor 0)."""
