-- The newest calls that did not complete: few among many.
CREATE INDEX calls_not_completed ON calls (at) WHERE outcome <> 'completed';
