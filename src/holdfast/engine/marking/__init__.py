"""How a request that others wrote is given marks, a key of a cache, and nothing else."""
