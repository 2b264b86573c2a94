"""Answers by generation."""
