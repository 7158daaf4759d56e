"""Height-field terrains and exact distances to them (floor 0)."""
