"""Instruction units: their texts, files, signatures, and import from another store."""
