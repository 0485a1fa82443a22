"""From yaml files and overrides to objects."""
