"""Attacks: a malicious server (privacy) or a malicious client (integrity)."""
