"""The layers of a prompt and their order: stable parts first, changing parts last."""
