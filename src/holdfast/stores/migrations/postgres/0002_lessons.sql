-- What sessions have learned is read whenever another begins: few rows among many.
CREATE INDEX events_learned ON holdfast.events (seq) WHERE type = 'cache.learned';
