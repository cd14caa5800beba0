-- Suspension, forks, deadlines, snapshots as templates, and the clock that deadlines are measured by.

ALTER TABLE sandboxes
    ADD COLUMN desired_reason text,
    ADD COLUMN suspend_memory boolean NOT NULL DEFAULT true,
    ADD COLUMN parent text,
    ADD COLUMN idle_timeout_s integer DEFAULT 21600,
    ADD COLUMN timeout_s integer,
    ADD COLUMN on_timeout text NOT NULL DEFAULT 'delete',
    ADD COLUMN auto_resume boolean NOT NULL DEFAULT true,
    -- these three are by the steady clock
    ADD COLUMN last_active_at timestamptz NOT NULL DEFAULT now(),
    ADD COLUMN idle_at timestamptz DEFAULT now() + interval '21600 seconds',
    ADD COLUMN expires_at timestamptz,
    ADD COLUMN durable_at timestamptz,
    ADD COLUMN durable_generation bigint NOT NULL DEFAULT 0,
    DROP CONSTRAINT sandboxes_desired,
    DROP CONSTRAINT sandboxes_state,
    ADD CONSTRAINT sandboxes_desired CHECK (desired IN ('running', 'paused', 'suspended', 'deleted')),
    ADD CONSTRAINT sandboxes_state CHECK (state IN (
        'creating', 'running', 'paused', 'suspending', 'suspended', 'restoring', 'failed', 'deleting', 'deleted')),
    ADD CONSTRAINT sandboxes_on_timeout CHECK (on_timeout IN ('delete', 'suspend'));

DROP INDEX sandboxes_lagging;
CREATE INDEX sandboxes_lagging ON sandboxes (updated_at)
    WHERE observed_generation < generation OR state IN ('creating', 'suspending', 'restoring', 'deleting');
DROP INDEX sandboxes_worker;
CREATE INDEX sandboxes_worker ON sandboxes (worker) WHERE state IN ('running', 'paused', 'suspended');
CREATE INDEX sandboxes_idle ON sandboxes (idle_at) WHERE state IN ('running', 'paused');
CREATE INDEX sandboxes_expiring ON sandboxes (expires_at) WHERE expires_at IS NOT NULL AND desired <> 'deleted';

ALTER TABLE templates
    ADD COLUMN kind text NOT NULL DEFAULT 'built',
    ADD COLUMN sandbox_id text,
    ADD COLUMN memory boolean NOT NULL DEFAULT false,
    ADD COLUMN vcpus integer,
    ADD COLUMN memory_mib integer,
    ADD CONSTRAINT templates_kind CHECK (kind IN ('built', 'snapshot'));

ALTER TABLE operations
    ADD COLUMN generation bigint NOT NULL DEFAULT 0,
    ADD COLUMN arguments jsonb NOT NULL DEFAULT '{}',
    ADD COLUMN result text,
    DROP CONSTRAINT operations_kind,
    ADD CONSTRAINT operations_kind CHECK (kind IN (
        'create', 'fork', 'pause', 'resume', 'suspend', 'restore', 'snapshot', 'delete'));

-- Steady time is the database's time plus `shift_s`, which undoes every step of the wall clock. A step is found by
-- comparing with a host's clock since boot, which nobody can set.
CREATE TABLE clock (
    one boolean PRIMARY KEY DEFAULT true,
    shift_s double precision NOT NULL DEFAULT 0,
    CONSTRAINT clock_one CHECK (one)
);
INSERT INTO clock DEFAULT VALUES;
CREATE TABLE clock_anchors (
    boot_id text PRIMARY KEY,
    since_boot_s double precision NOT NULL,
    steady_s double precision NOT NULL
);

-- Of its own, so that a test can set it.
CREATE FUNCTION wall_clock() RETURNS timestamptz LANGUAGE sql VOLATILE AS 'SELECT clock_timestamp()';
