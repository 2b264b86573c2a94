"""Records become what a model sees and learns: its own chat template, its tokens, a mask of what is learned."""

from vidqa.chat.chat import Chat, Encoded, load_chat

__all__ = ["Chat", "Encoded", "load_chat"]
