-- What planners of several processes share, as JSON: conversations by the digest of their last request, orders of tools.
CREATE TABLE holdfast.shared_values (
    key text COLLATE "C" PRIMARY KEY,
    value text NOT NULL,
    at double precision NOT NULL
);

CREATE INDEX shared_values_by_time ON holdfast.shared_values (at);
