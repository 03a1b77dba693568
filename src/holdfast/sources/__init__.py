"""What is on disk and around an agent: instruction files, git state, the environment it runs in."""
