"""What a training will take, from its spec and its model's config.json alone: parameters, memory, work, bytes on disk.

Plain arithmetic without torch, so that preflight can tell before a GPU starts and the engine can choose by it.
"""
