"""Encoders that turn texts into vectors: the packaged word vectors, and a user's own ONNX model."""
