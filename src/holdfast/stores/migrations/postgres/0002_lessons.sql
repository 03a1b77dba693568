-- Read whenever a session starts: few rows among many.
CREATE INDEX events_learned ON holdfast.events (seq) WHERE type = 'cache.learned';
