-- What a gateway key may spend on a day (UTC), and how many requests it may make in a minute.
ALTER TABLE api_keys ADD COLUMN budget_usd_a_day REAL;
ALTER TABLE api_keys ADD COLUMN requests_a_minute INTEGER;
