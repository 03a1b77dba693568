"""Extract entities, calls, errors and requests from a conversation without a model."""
