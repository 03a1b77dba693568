-- What each gateway key has spent on a day (UTC), and what is reserved for its calls in progress, in picodollars.
-- `usual_output_tokens` is what its calls return at most, recent ones first; 0 if unknown.
CREATE TABLE budgets (
    key_id TEXT NOT NULL,
    day TEXT NOT NULL,
    spent INTEGER NOT NULL,
    reserved INTEGER NOT NULL,
    usual_output_tokens INTEGER NOT NULL,
    PRIMARY KEY (key_id, day)
) WITHOUT ROWID;

-- One row per call: `reserved` and `charged` are its parts of the sums above until it is settled, which happens once.
CREATE TABLE reservations (
    id TEXT PRIMARY KEY,
    key_id TEXT NOT NULL,
    day TEXT NOT NULL,
    reserved INTEGER NOT NULL,
    charged INTEGER NOT NULL,
    at REAL NOT NULL,
    is_settled INTEGER NOT NULL
) WITHOUT ROWID;

CREATE INDEX reservations_by_time ON reservations (at);
CREATE INDEX reservations_open ON reservations (at) WHERE is_settled = 0 AND reserved > 0;
