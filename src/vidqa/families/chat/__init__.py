"""Records become tokens by the model's own chat template, with a mask of the supervised ones."""

from vidqa.families.chat.chat import Chat, Encoded, Outline, load_chat, shown

__all__ = ["Chat", "Encoded", "Outline", "load_chat", "shown"]
