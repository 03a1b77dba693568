"""A drop-in gateway for providers' own APIs: forwards requests, records them as sessions, and can rewrite them."""
