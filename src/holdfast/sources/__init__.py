"""What is on disk and around an agent: instruction files, skills, git state, the environment it runs in."""
