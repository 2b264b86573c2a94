"""Pages of one file that open offline: their look, their frame, and charts drawn as SVG."""
