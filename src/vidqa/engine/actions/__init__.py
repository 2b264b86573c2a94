"""The actions other than training: evaluate, inference, embed and export."""
