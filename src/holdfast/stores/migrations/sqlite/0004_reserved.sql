-- Kept for the table of calls.
SELECT 1;
