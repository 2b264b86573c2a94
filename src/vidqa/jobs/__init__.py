"""Jobs: what a spec asks for, launched on a platform, recorded, watched, cancelled, tried again."""
