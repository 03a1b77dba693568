"""A provider that runs on your machine: Anthropic's API with its cache, in simulated or real time."""
