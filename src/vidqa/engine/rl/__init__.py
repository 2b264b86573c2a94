"""Reinforcement learning on videos: rollouts by the native generator, rewards, updates by the learner of training."""
