"""The dashboard: its static files and their routes."""
