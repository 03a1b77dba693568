"""Which skills are on disk, what each says of itself, and what is wrong with those that cannot be used."""
