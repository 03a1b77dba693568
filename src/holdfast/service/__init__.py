"""What a team asks of a store over HTTP: cache state and its controls, figures, keys, a live feed."""
