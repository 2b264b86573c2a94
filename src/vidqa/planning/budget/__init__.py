"""Requirements of a training, from its spec and its model's config.json: parameters, memory, time, disk.

Plain arithmetic without torch: preflight runs it before a GPU starts, and the engine chooses its memory policy by it.
"""
