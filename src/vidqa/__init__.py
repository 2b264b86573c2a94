"""Fine-tune a video question-answering model on your own videos: the library behind the scripts.

`references/packages.md` lists the packages. Only `engine` imports torch.
"""

__version__ = "0.1.0"
