"""The manifest of an agent's instruction units: checked, linted, approved, published and deployed."""
