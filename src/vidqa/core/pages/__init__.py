"""Self-contained HTML pages that open offline: style, layout, and charts in SVG."""
