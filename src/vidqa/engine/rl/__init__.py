"""Reinforcement learning on videos: rollouts by the native generator, rewards, and updates by the learner of training."""
