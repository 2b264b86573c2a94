"""Compatibility with cosmos-rl and TAO: keys that change nothing here, keys that moved, files written for cosmos-rl."""
