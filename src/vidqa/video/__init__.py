"""Videos and images: probe a file, plan its frames, decode them in processes that can be stopped."""
