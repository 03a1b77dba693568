-- PostgreSQL only: tables partitioned by time. A file is of one machine.
SELECT 1;
