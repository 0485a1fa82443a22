"""Trainings outside of a federation: proved, verified, forged."""
