"""Fine-tune a video question-answering model on your own videos.

The library behind the scripts of the `finetune-cosmos-reason` skill. Rooms: `spec`, `data`, `chat`,
`families`, `video`, `scoring`, `gaps`, `preflight`, `platforms`, and `engine`, the only one that imports torch.
"""

__version__ = "0.1.0"
