"""Records become what a model sees and learns: its own chat template, its tokens, a mask of what is learned."""

from vidqa.families.chat.chat import Chat, Encoded, Outline, load_chat, shown

__all__ = ["Chat", "Encoded", "Outline", "load_chat", "shown"]
