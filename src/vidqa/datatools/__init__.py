"""Tools for a user's annotations before any training: split, preview, inspect, convert. Torch-free; one script each."""
