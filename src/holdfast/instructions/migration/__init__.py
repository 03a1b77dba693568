"""How files of instructions become units: split, named, classed and fitted to a manifest, for people to review."""
