"""Coverage: whether intents and their paraphrases find the units of a manifest."""
