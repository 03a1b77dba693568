"""Instructions that are found when they are needed: units, manifests, stubs, recall, coverage, and who may do what."""
