"""`holdfast instructions`: publishes, checks and recalls the instructions of agents."""
