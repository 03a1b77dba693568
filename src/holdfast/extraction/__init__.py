"""What a conversation says, found without a model: entities, calls, errors, asks."""
