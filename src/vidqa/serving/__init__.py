"""Answers over HTTP: OpenAI's chat completions with videos and images; what generates is handed in."""
