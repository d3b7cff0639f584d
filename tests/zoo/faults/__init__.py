"""One planted fault a script."""
