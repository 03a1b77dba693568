"""An agent's instructions at run time: the embedded library, the service client, session tools and the start hook."""
