"""Flower rounds: server, clients, engines, the wiretap."""
