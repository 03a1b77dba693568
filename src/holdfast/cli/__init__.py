"""The `holdfast` command: thin commands over the library, each loading no more than it needs."""
