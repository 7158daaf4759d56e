"""What learns: the diffusion generator, PPO and sampling MPC (floor 1)."""
