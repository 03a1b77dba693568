"""Instructions loaded on demand: units, manifests, boot stubs, recall, coverage, usage detection, access control."""
