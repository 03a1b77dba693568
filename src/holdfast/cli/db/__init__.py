"""`holdfast db`: maintains, exports and imports a store."""
