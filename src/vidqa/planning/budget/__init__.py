"""What a training needs, from its spec and its model's config.json: parameters, memory, time, disk.

Plain arithmetic without torch, so that preflight can tell before a GPU starts and the engine can choose by it.
"""
