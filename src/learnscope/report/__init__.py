"""A run on paper: figures, Markdown, and findings on a terminal. Needs no torch."""
