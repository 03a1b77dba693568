-- The vectors of units, by a digest of the unit's text and of what turned it into vectors; what is lost is encoded again.
CREATE TABLE instruction_encodings (
    key BLOB PRIMARY KEY,
    vectors BLOB NOT NULL,
    kept_at INTEGER NOT NULL
);

CREATE INDEX instruction_encodings_by_age ON instruction_encodings (kept_at);
