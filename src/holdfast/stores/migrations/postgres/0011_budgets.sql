-- What each gateway key has spent on a day (UTC), and what is reserved for its calls in progress, in picodollars.
-- `usual_output_tokens` is what its calls return at most, recent ones first; 0 if unknown.
CREATE TABLE holdfast.budgets (
    key_id text COLLATE "C" NOT NULL,
    day text COLLATE "C" NOT NULL,
    spent bigint NOT NULL,
    reserved bigint NOT NULL,
    usual_output_tokens bigint NOT NULL,
    PRIMARY KEY (key_id, day)
);

-- One row per call: `reserved` and `charged` are its parts of the sums above until it is settled, which happens once.
CREATE TABLE holdfast.reservations (
    id text COLLATE "C" PRIMARY KEY,
    key_id text COLLATE "C" NOT NULL,
    day text COLLATE "C" NOT NULL,
    reserved bigint NOT NULL,
    charged bigint NOT NULL,
    at double precision NOT NULL,
    is_settled integer NOT NULL
);

CREATE INDEX reservations_by_time ON holdfast.reservations (at);
CREATE INDEX reservations_open ON holdfast.reservations (at) WHERE is_settled = 0 AND reserved > 0;
