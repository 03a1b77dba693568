"""Tools of a session: how they are defined, checked, confirmed and run, and what becomes of their output."""
