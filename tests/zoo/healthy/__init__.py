"""Trainings with nothing wrong."""
