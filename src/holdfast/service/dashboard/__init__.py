"""The page that shows what the service knows: its files, and how they are sent."""
