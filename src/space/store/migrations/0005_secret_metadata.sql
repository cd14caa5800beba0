-- What a client wrote beside a secret: nothing secret, and nothing that we go by.
ALTER TABLE secrets ADD COLUMN metadata jsonb NOT NULL DEFAULT '{}';
