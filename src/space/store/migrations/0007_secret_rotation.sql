-- How often a provider has rotated the value since somebody set it.
ALTER TABLE secrets ADD COLUMN rotated bigint NOT NULL DEFAULT 0;
