-- What a gateway key may spend in a month (UTC), and the models it may call, as patterns separated by spaces.
ALTER TABLE holdfast.api_keys ADD COLUMN budget_usd_a_month double precision;
ALTER TABLE holdfast.api_keys ADD COLUMN models text;
