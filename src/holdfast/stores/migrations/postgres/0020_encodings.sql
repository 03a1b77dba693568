-- The vectors of units, by a digest of the unit's text and of what turned it into vectors; what is lost is encoded again.
CREATE TABLE holdfast.instruction_encodings (
    key bytea PRIMARY KEY,
    vectors bytea NOT NULL,
    kept_at bigint NOT NULL
);

CREATE INDEX instruction_encodings_by_age ON holdfast.instruction_encodings (kept_at);
