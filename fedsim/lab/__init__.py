"""Experiments from first round to scores."""
