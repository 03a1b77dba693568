"""The routes of the HTTP API about instructions: agents, units, manifests, recall and reviews."""
