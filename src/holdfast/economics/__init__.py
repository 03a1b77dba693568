"""Cost arithmetic over the catalog's prices; pure functions, no I/O."""
