"""Planned samples become answers: prompts, batch inference, answers on disk."""
