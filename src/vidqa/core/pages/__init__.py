"""HTML pages of one file that open offline: style, frame, and charts in SVG."""
