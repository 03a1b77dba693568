"""What earlier work has taught a project: harvested, kept as files that people edit, told in a digest."""
