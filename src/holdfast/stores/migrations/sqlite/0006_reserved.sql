-- Kept for what other parts of the same version add.
SELECT 1;
