"""Jobs: what a spec asks for, launched on a platform, watched, cancelled, tried again."""
