"""OpenAI's chat completions API with videos and images over HTTP, for any backend."""
