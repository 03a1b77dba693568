"""Project knowledge from earlier sessions: harvested, stored in files that people edit, summarised in a digest."""
