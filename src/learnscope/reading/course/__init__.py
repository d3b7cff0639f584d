"""The course of a training: its loss, how far its weights move, and what guessing would reach."""
