"""Motion clips: frames, features, resampling, mirroring and contacts (floor 0)."""
