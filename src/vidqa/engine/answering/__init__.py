"""Answers to planned samples: prompts, batch inference, answers on disk."""
