-- What may leave each sandbox, secrets, the authority that guests trust, and what was decided.

ALTER TABLE projects ADD COLUMN ceiling jsonb;

-- The generations rise with each change; `applied` is the highest that the sandbox's worker is known to go by.
ALTER TABLE sandboxes
    ADD COLUMN policy jsonb NOT NULL DEFAULT '{}',
    ADD COLUMN policy_secrets text[] NOT NULL DEFAULT '{}',
    ADD COLUMN policy_generation bigint NOT NULL DEFAULT 1,
    ADD COLUMN policy_applied bigint NOT NULL DEFAULT 1,
    ADD COLUMN secrets_generation bigint NOT NULL DEFAULT 1,
    ADD COLUMN secrets_applied bigint NOT NULL DEFAULT 1;
CREATE INDEX sandboxes_unapplied ON sandboxes (updated_at)
    WHERE policy_applied < policy_generation OR secrets_applied < secrets_generation;
CREATE INDEX sandboxes_policy_secrets ON sandboxes USING gin (policy_secrets);

-- `sealed` can be opened only with the master key that `key_id` names, which is not in the database.
CREATE TABLE secrets (
    project_id text NOT NULL REFERENCES projects ON DELETE CASCADE,
    name text NOT NULL,
    id text NOT NULL UNIQUE,
    version bigint NOT NULL,
    sealed bytea NOT NULL,
    key_id text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (project_id, name)
);

-- One row: the root certificate, and its key, sealed likewise.
CREATE TABLE authority (
    one boolean PRIMARY KEY DEFAULT true,
    id text NOT NULL,
    certificate text NOT NULL,
    sealed bytea NOT NULL,
    key_id text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT authority_one CHECK (one)
);

-- `boot` and `seq` are the gateway process's own numbers, so that an event that is told twice is kept once.
CREATE TABLE egress_events (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    sandbox_id text NOT NULL REFERENCES sandboxes ON DELETE CASCADE,
    boot text NOT NULL,
    seq bigint NOT NULL,
    at timestamptz NOT NULL,
    event jsonb NOT NULL,
    CONSTRAINT egress_events_once UNIQUE (boot, seq)
);
CREATE INDEX egress_events_sandbox ON egress_events (sandbox_id, id);
CREATE INDEX egress_events_at ON egress_events (at);

-- How far each worker's events have been read.
CREATE TABLE egress_positions (
    worker text PRIMARY KEY,
    boot text NOT NULL,
    seq bigint NOT NULL
);
