"""Defenses: on what leaves the client (privacy), on what reaches the server (integrity)."""
