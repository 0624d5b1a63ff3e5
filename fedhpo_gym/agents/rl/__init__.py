"""Learned policies: training with stable-baselines3, storing and acting with numpy alone."""
