-- The tables that grow with every call are partitioned by month (UTC), so that retention frees whole files. What older
-- programs send works on both sides of this migration: names, columns and conflict targets stay.
-- Appends lock the row of their session first: from here on they wait, and no transaction holds what is locked below.
LOCK TABLE holdfast.sessions IN SHARE ROW EXCLUSIVE MODE;

-- A sequence of its own: partitioned tables have identity columns only since PostgreSQL 17.
CREATE SEQUENCE holdfast.event_positions;
SELECT setval('holdfast.event_positions', coalesce(max(seq), 0) + 1, false) FROM holdfast.events;

-- A foreign key would be checked for each event, and lock the sessions for each new partition; an append writes the row
-- of the session in the same transaction.
ALTER TABLE holdfast.events ALTER COLUMN seq DROP IDENTITY;
ALTER TABLE holdfast.events DROP CONSTRAINT events_pkey, DROP CONSTRAINT events_id_key, DROP CONSTRAINT events_session_id_fkey;
ALTER TABLE holdfast.calls DROP CONSTRAINT calls_pkey;
ALTER TABLE holdfast.charges DROP CONSTRAINT charges_pkey;
ALTER TABLE holdfast.failures DROP CONSTRAINT failures_pkey;
ALTER TABLE holdfast.conversation_keys RENAME CONSTRAINT conversation_keys_pkey TO conversation_keys_first_pkey;

-- What exists becomes the first partition, its indexes those of the partition.
DO $$ DECLARE name text; BEGIN
    FOR name IN SELECT indexname FROM pg_indexes WHERE schemaname = 'holdfast'
        AND tablename IN ('events', 'calls', 'charges', 'failures', 'conversation_keys') AND indexname !~ '_pkey$'
    LOOP EXECUTE format('ALTER INDEX holdfast.%I RENAME TO %I', name, name || '_first'); END LOOP;
    FOREACH name IN ARRAY ARRAY['events', 'calls', 'charges', 'failures', 'conversation_keys'] LOOP
        EXECUTE format('ALTER TABLE holdfast.%I RENAME TO %I', name, name || '_first');
        EXECUTE format(
            'CREATE TABLE holdfast.%I (LIKE holdfast.%I INCLUDING DEFAULTS) PARTITION BY RANGE (at)', name, name || '_first'
        );
    END LOOP;
END $$;

ALTER TABLE holdfast.events ALTER COLUMN seq SET DEFAULT nextval('holdfast.event_positions');
ALTER SEQUENCE holdfast.event_positions OWNED BY holdfast.events.seq;

-- Every key contains the session, so that rows can be distributed by it, and the time, which a partition is chosen by.
ALTER TABLE holdfast.events ADD PRIMARY KEY (id, session_id, at);
ALTER TABLE holdfast.calls ADD PRIMARY KEY (session_id, event_id, at);
ALTER TABLE holdfast.charges ADD PRIMARY KEY (session_id, event_id, at);
ALTER TABLE holdfast.failures ADD PRIMARY KEY (session_id, event_id, at);
ALTER TABLE holdfast.conversation_keys ADD PRIMARY KEY (key, at, session_id);

CREATE INDEX events_by_position ON holdfast.events (seq);
CREATE INDEX events_by_session ON holdfast.events (session_id, seq);
CREATE INDEX events_learned ON holdfast.events (seq) WHERE type = 'cache.learned';
CREATE INDEX events_started ON holdfast.events (session_id) WHERE type = 'session.started';
CREATE INDEX events_turns_ended ON holdfast.events (session_id) WHERE type IN ('turn.completed', 'turn.cancelled');
CREATE INDEX events_skills ON holdfast.events (at) WHERE type = 'skill.loaded';
CREATE INDEX events_skills_used ON holdfast.events (session_id) WHERE type = 'skill.used';
CREATE INDEX calls_by_time ON holdfast.calls (at);
CREATE INDEX calls_that_lost ON holdfast.calls (session_id, lost, number, kind, at, simulated) WHERE lost > 0;
CREATE INDEX charges_by_time ON holdfast.charges (at);
CREATE INDEX failures_by_time ON holdfast.failures (at);
CREATE INDEX conversation_keys_by_session ON holdfast.conversation_keys (session_id);

-- The partitions, with their bounds in seconds since the epoch. `since` is null in the first one, `until` in the one
-- for all other times.
CREATE VIEW holdfast.partitions AS
SELECT parent.relname::text AS parent, part.relname::text AS name,
    substring(pg_get_expr(part.relpartbound, part.oid) FROM 'FROM \(''(.+?)''\)')::double precision AS since,
    substring(pg_get_expr(part.relpartbound, part.oid) FROM 'TO \(''(.+?)''\)')::double precision AS until
FROM pg_inherits
    JOIN pg_class AS part ON part.oid = inhrelid
    JOIN pg_class AS parent ON parent.oid = inhparent
    JOIN pg_namespace AS space ON space.oid = parent.relnamespace
WHERE space.nspname = 'holdfast' AND parent.relkind = 'p';

-- Makes a table a partition. Within a partition, an index refuses a second continuation of an event as well; across
-- partitions it cannot, and the head in the row of the session decides.
CREATE FUNCTION holdfast.attach_partition(parent text, name text, bound text) RETURNS void LANGUAGE plpgsql AS
$$ BEGIN
    IF parent = 'events' AND name <> 'events_first' THEN
        EXECUTE format(
            'CREATE UNIQUE INDEX %I ON holdfast.%I (session_id, parent_event_id)', name || '_continue_once', name
        );
    END IF;
    EXECUTE format('ALTER TABLE holdfast.%I ATTACH PARTITION holdfast.%I %s', parent, name, bound);
END $$;

-- Creates the partitions up to and including the month that is `months` after this one. Rows that arrived too early, in
-- the partition for all other times, are moved. Returns how many partitions are new.
CREATE FUNCTION holdfast.add_partitions(months integer) RETURNS integer LANGUAGE plpgsql AS
$$ DECLARE
    parent text;
    name text;
    since timestamp;
    until timestamp;
    bounds double precision[];
    added integer := 0;
BEGIN
    FOR parent, since IN
        SELECT p.parent, coalesce(to_timestamp(max(p.until)) AT TIME ZONE 'UTC', date_trunc('month', now() AT TIME ZONE 'UTC'))
        FROM holdfast.partitions AS p GROUP BY p.parent ORDER BY 1
    LOOP
        WHILE since <= date_trunc('month', now() AT TIME ZONE 'UTC') + make_interval(months => months) LOOP
            until := since + interval '1 month';
            bounds := ARRAY[extract(epoch FROM since), extract(epoch FROM until)];
            name := parent || to_char(since, '_YYYY_MM');
            EXECUTE format('LOCK TABLE holdfast.%I IN ACCESS EXCLUSIVE MODE', parent || '_other');
            EXECUTE format('CREATE TABLE holdfast.%I (LIKE holdfast.%I INCLUDING DEFAULTS)', name, parent);
            EXECUTE format(
                'WITH moved AS (DELETE FROM holdfast.%I WHERE at >= $1 AND at < $2 RETURNING *) '
                'INSERT INTO holdfast.%I SELECT * FROM moved', parent || '_other', name
            ) USING bounds[1], bounds[2];
            PERFORM holdfast.attach_partition(
                parent, name, format('FOR VALUES FROM (%L) TO (%L)', bounds[1], bounds[2])
            );
            since := until;
            added := added + 1;
        END LOOP;
    END LOOP;
    RETURN added;
END $$;

-- The first partition ends with this month. Rows of later times are moved into the one for all other times.
DO $$ DECLARE
    parent text;
    month_end timestamp := date_trunc('month', now() AT TIME ZONE 'UTC') + interval '1 month';
    bound double precision := extract(epoch FROM month_end);
BEGIN
    FOREACH parent IN ARRAY ARRAY['events', 'calls', 'charges', 'failures', 'conversation_keys'] LOOP
        EXECUTE format('CREATE TABLE holdfast.%I (LIKE holdfast.%I INCLUDING DEFAULTS)', parent || '_other', parent);
        EXECUTE format(
            'WITH moved AS (DELETE FROM holdfast.%I WHERE at >= $1 RETURNING *) INSERT INTO holdfast.%I SELECT * FROM moved',
            parent || '_first', parent || '_other'
        ) USING bound;
        PERFORM holdfast.attach_partition(parent, parent || '_first', format('FOR VALUES FROM (MINVALUE) TO (%L)', bound));
        PERFORM holdfast.attach_partition(parent, parent || '_other', 'DEFAULT');
    END LOOP;
    PERFORM holdfast.add_partitions(2);
END $$;

-- The oldest program that may use a database with this migration, by the schema version that it knows. What only adds
-- has 1: programs of both versions work on it during an upgrade.
ALTER TABLE holdfast.versions ADD COLUMN oldest_program integer NOT NULL DEFAULT 1;

-- A call belongs to its key. Programs of the version before name the id alone as their conflict target.
ALTER TABLE holdfast.reservations DROP CONSTRAINT reservations_pkey;
ALTER TABLE holdfast.reservations ADD PRIMARY KEY (key_id, id);
CREATE UNIQUE INDEX reservations_by_id ON holdfast.reservations (id);

-- Each writer adds to rows of its own, so that writers do not wait for each other: in the sums of days, `simulated` is 1
-- for simulated calls and 0 or less for others, -n in the rows of writer n. Queries ask for `simulated` up to 0 or 1 and
-- so add them up, those of older programs too. Rows of past days are merged into the one with 0.
CREATE SEQUENCE holdfast.writer_numbers MAXVALUE 64 CYCLE;
CREATE INDEX days_by_writer ON holdfast.days (day) WHERE simulated < 0;
CREATE INDEX verdict_days_by_writer ON holdfast.verdict_days (day) WHERE simulated < 0;
CREATE INDEX outcome_days_by_writer ON holdfast.outcome_days (day) WHERE simulated < 0;
CREATE INDEX account_days_by_writer ON holdfast.account_days (day) WHERE simulated < 0;
