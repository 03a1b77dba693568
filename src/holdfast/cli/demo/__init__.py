"""`holdfast demo`: a scripted coding session."""
