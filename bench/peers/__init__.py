"""Other projects that watch a training loop, each in an environment of its own."""
