"""OpenAI's chat completions with videos and images over HTTP, in front of any backend."""
