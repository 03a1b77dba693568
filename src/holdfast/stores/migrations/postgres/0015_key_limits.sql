-- What a gateway key may spend on a day (UTC), and how many requests it may make in a minute.
ALTER TABLE holdfast.api_keys ADD COLUMN budget_usd_a_day double precision;
ALTER TABLE holdfast.api_keys ADD COLUMN requests_a_minute bigint;
