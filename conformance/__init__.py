"""Runs real clients, installed from their registries, against the simulator and through the gateway."""
