"""Motion clips, features, resampling and mirroring (floor 0)."""
