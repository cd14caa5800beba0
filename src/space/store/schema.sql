-- The whole schema, as the migrations leave it. For reading; a test keeps it equal to their sum.

CREATE TABLE projects (
    id text PRIMARY KEY,
    name text NOT NULL UNIQUE,
    created_at timestamptz NOT NULL DEFAULT now(),
    ceiling jsonb
);

CREATE TABLE api_keys (
    id text PRIMARY KEY,
    project_id text NOT NULL REFERENCES projects ON DELETE CASCADE,
    hash text NOT NULL UNIQUE,
    label text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    last_used_at timestamptz,
    revoked_at timestamptz
);
CREATE INDEX api_keys_project ON api_keys (project_id);

-- A project sees the templates it has built; two projects may have the same digest.
CREATE TABLE templates (
    project_id text NOT NULL REFERENCES projects ON DELETE CASCADE,
    digest text NOT NULL,
    name text NOT NULL,
    disk_mib integer NOT NULL,
    used_bytes bigint NOT NULL,
    kernel_release text NOT NULL,
    agent_version text NOT NULL,
    vmm text NOT NULL,
    built_at timestamptz NOT NULL,
    build_s double precision NOT NULL,
    kind text NOT NULL DEFAULT 'built',
    -- of a snapshot: what it was taken of, whether with memory, and the size that goes with it
    sandbox_id text,
    memory boolean NOT NULL DEFAULT false,
    vcpus integer,
    memory_mib integer,
    PRIMARY KEY (project_id, digest),
    CONSTRAINT templates_kind CHECK (kind IN ('built', 'snapshot'))
);

-- A name is a template as its users know it, with an id that stays while what it points to changes: `digest` is what
-- its tag `default` stands for, null until its first build has succeeded.
CREATE TABLE template_names (
    project_id text NOT NULL,
    name text NOT NULL,
    digest text,
    id text NOT NULL DEFAULT substr(md5(random()::text || clock_timestamp()::text), 1, 20) UNIQUE,
    public boolean NOT NULL DEFAULT false,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    build_id uuid,
    tagged_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (project_id, name),
    FOREIGN KEY (project_id, digest) REFERENCES templates ON DELETE CASCADE
);
CREATE INDEX template_names_digest ON template_names (project_id, digest);

-- The tags but `default`.
CREATE TABLE template_tags (
    project_id text NOT NULL,
    name text NOT NULL,
    tag text NOT NULL,
    digest text NOT NULL,
    build_id uuid,
    tagged_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (project_id, name, tag),
    FOREIGN KEY (project_id, name) REFERENCES template_names ON DELETE CASCADE,
    FOREIGN KEY (project_id, digest) REFERENCES templates ON DELETE CASCADE,
    CONSTRAINT template_tags_others CHECK (tag <> 'default')
);
CREATE INDEX template_tags_digest ON template_tags (project_id, digest);

-- Volumes. One that is `making` or `deleting` is nobody's yet, or no more.
CREATE TABLE volumes (
    id text PRIMARY KEY,
    project_id text NOT NULL REFERENCES projects,
    name text NOT NULL,
    worker text NOT NULL,
    size_mib integer NOT NULL,
    state text NOT NULL DEFAULT 'making',
    created_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT volumes_name UNIQUE (project_id, name),
    CONSTRAINT volumes_state CHECK (state IN ('making', 'ready', 'deleting'))
);

-- `wish` is null until somebody has said what to build. `sealed`: the password that the image is pulled with.
CREATE TABLE template_builds (
    id uuid PRIMARY KEY,
    project_id text NOT NULL,
    name text NOT NULL,
    tags text[] NOT NULL,
    vcpus integer NOT NULL,
    memory_mib integer NOT NULL,
    min_free_mib integer NOT NULL DEFAULT 0,
    worker text,
    wish jsonb,
    sealed bytea,
    key_id text,
    status text NOT NULL DEFAULT 'waiting',
    digest text,
    reason text,
    reason_code text,
    reason_step text,
    lease_owner text,
    lease_until timestamptz,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    asked_at timestamptz,
    started_at timestamptz,
    finished_at timestamptz,
    FOREIGN KEY (project_id, name) REFERENCES template_names ON DELETE CASCADE,
    CONSTRAINT template_builds_status CHECK (status IN ('waiting', 'building', 'ready', 'error'))
);
CREATE INDEX template_builds_name ON template_builds (project_id, name, created_at DESC);
CREATE INDEX template_builds_open ON template_builds (asked_at) WHERE status IN ('waiting', 'building');

CREATE TABLE template_build_logs (
    build_id uuid NOT NULL REFERENCES template_builds ON DELETE CASCADE,
    line integer NOT NULL,
    at timestamptz NOT NULL,
    step text NOT NULL,
    level text NOT NULL,
    text text NOT NULL,
    PRIMARY KEY (build_id, line)
);

CREATE FUNCTION notify_build() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('space_build', NEW.id::text);
    RETURN NULL;
END
$$;
CREATE TRIGGER template_builds_changed AFTER UPDATE ON template_builds
    FOR EACH ROW WHEN (OLD.status <> NEW.status OR (OLD.wish IS NULL AND NEW.wish IS NOT NULL))
    EXECUTE FUNCTION notify_build();

CREATE TABLE sandboxes (
    id text PRIMARY KEY,
    project_id text NOT NULL REFERENCES projects,
    -- spec
    template text NOT NULL,
    template_name text NOT NULL,
    vcpus integer NOT NULL,
    memory_mib integer NOT NULL,
    env jsonb NOT NULL,
    labels jsonb NOT NULL,
    agent_token text NOT NULL,
    parent text,
    idle_timeout_s integer DEFAULT 21600,
    timeout_s integer,
    on_timeout text NOT NULL DEFAULT 'delete',
    auto_resume boolean NOT NULL DEFAULT true,
    -- the timeout does not run while it is suspended or paused, and begins anew when it runs again
    timeout_restarts boolean NOT NULL DEFAULT false,
    -- a suspension by the timeout keeps the memory
    timeout_memory boolean NOT NULL DEFAULT true,
    -- its other ports need no key
    public_ports boolean NOT NULL DEFAULT false,
    -- the Host that a server in it sees; ${PORT} in it stands for the port
    mask_host text,
    -- what a client of E2B said at its creation and reads back; null: it was made otherwise
    e2b jsonb,
    -- a list of {volume, name, path}
    volumes jsonb NOT NULL DEFAULT '[]',
    desired text NOT NULL DEFAULT 'running',
    desired_reason text,
    suspend_memory boolean NOT NULL DEFAULT true,
    generation bigint NOT NULL DEFAULT 1,
    -- status
    state text NOT NULL DEFAULT 'creating',
    observed_generation bigint NOT NULL DEFAULT 0,
    reason text,
    worker text,
    timings_ms jsonb NOT NULL DEFAULT '{}',
    last_event bigint NOT NULL DEFAULT 0,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    started_at timestamptz,
    durable_at timestamptz,
    durable_generation bigint NOT NULL DEFAULT 0,
    -- these three are by the steady clock
    last_active_at timestamptz NOT NULL DEFAULT now(),
    idle_at timestamptz DEFAULT now() + interval '21600 seconds',
    expires_at timestamptz,
    -- who is reconciling it; the epoch only grows, and fences late writes here and at the worker
    lease_owner text,
    lease_until timestamptz,
    epoch bigint NOT NULL DEFAULT 0,
    -- what may leave it; `applied` is the highest generation that its worker is known to go by
    policy jsonb NOT NULL DEFAULT '{}',
    policy_secrets text[] NOT NULL DEFAULT '{}',
    policy_generation bigint NOT NULL DEFAULT 1,
    policy_applied bigint NOT NULL DEFAULT 1,
    secrets_generation bigint NOT NULL DEFAULT 1,
    secrets_applied bigint NOT NULL DEFAULT 1,
    -- of its upstream proxy, where it came with the policy; sealed
    proxy_password bytea,
    proxy_password_key text,
    CONSTRAINT sandboxes_desired CHECK (desired IN ('running', 'paused', 'suspended', 'deleted')),
    CONSTRAINT sandboxes_state CHECK (state IN (
        'creating', 'running', 'paused', 'suspending', 'suspended', 'restoring', 'failed', 'deleting', 'deleted')),
    CONSTRAINT sandboxes_on_timeout CHECK (on_timeout IN ('delete', 'suspend')),
    CONSTRAINT sandboxes_proxy_password CHECK ((proxy_password IS NULL) = (proxy_password_key IS NULL))
);
CREATE INDEX sandboxes_newest ON sandboxes (project_id, created_at DESC, id DESC);
CREATE INDEX sandboxes_labels ON sandboxes USING gin (labels jsonb_path_ops);
CREATE INDEX sandboxes_lagging ON sandboxes (updated_at)
    WHERE observed_generation < generation OR state IN ('creating', 'suspending', 'restoring', 'deleting');
CREATE INDEX sandboxes_worker ON sandboxes (worker) WHERE state IN ('running', 'paused', 'suspended');
CREATE INDEX sandboxes_idle ON sandboxes (idle_at) WHERE state IN ('running', 'paused');
CREATE INDEX sandboxes_expiring ON sandboxes (expires_at) WHERE expires_at IS NOT NULL AND desired <> 'deleted';
CREATE INDEX sandboxes_unapplied ON sandboxes (updated_at)
    WHERE policy_applied < policy_generation OR secrets_applied < secrets_generation;
CREATE INDEX sandboxes_policy_secrets ON sandboxes USING gin (policy_secrets);
CREATE INDEX sandboxes_volumes ON sandboxes USING gin (volumes jsonb_path_ops)
    WHERE volumes <> '[]' AND state <> 'deleted';

CREATE TABLE events (
    sandbox_id text NOT NULL REFERENCES sandboxes ON DELETE CASCADE,
    sequence bigint NOT NULL,
    at timestamptz NOT NULL DEFAULT now(),
    type text NOT NULL,
    from_state text,
    state text NOT NULL,
    reason text,
    PRIMARY KEY (sandbox_id, sequence)
);

CREATE FUNCTION refuse_update() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% is append-only', TG_TABLE_NAME;
END
$$;
CREATE TRIGGER events_append_only BEFORE UPDATE ON events
    FOR EACH ROW EXECUTE FUNCTION refuse_update();

CREATE TABLE operations (
    id text PRIMARY KEY,
    project_id text NOT NULL REFERENCES projects,
    sandbox_id text NOT NULL REFERENCES sandboxes ON DELETE CASCADE,
    kind text NOT NULL,
    status text NOT NULL DEFAULT 'running',
    error_code text,
    error_detail text,
    idempotency_key text,
    request_hash text,
    created_at timestamptz NOT NULL DEFAULT now(),
    finished_at timestamptz,
    generation bigint NOT NULL DEFAULT 0,
    arguments jsonb NOT NULL DEFAULT '{}',
    result text,
    CONSTRAINT operations_kind CHECK (kind IN (
        'create', 'fork', 'pause', 'resume', 'suspend', 'restore', 'snapshot', 'delete')),
    CONSTRAINT operations_status CHECK (status IN ('running', 'succeeded', 'failed')),
    CONSTRAINT operations_idempotency UNIQUE (project_id, idempotency_key)
);
CREATE INDEX operations_sandbox ON operations (sandbox_id);
-- each move of a sandbox looks for these; those that have ended become many
CREATE INDEX operations_running ON operations (sandbox_id) WHERE status = 'running';

-- Listeners are told which row changed and read it themselves.
CREATE FUNCTION notify_id() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify(TG_ARGV[0], NEW.id);
    RETURN NULL;
END
$$;
CREATE TRIGGER sandboxes_inserted AFTER INSERT ON sandboxes
    FOR EACH ROW EXECUTE FUNCTION notify_id('space_sandbox');
CREATE TRIGGER sandboxes_changed AFTER UPDATE ON sandboxes
    FOR EACH ROW WHEN (OLD.state <> NEW.state OR OLD.generation <> NEW.generation)
    EXECUTE FUNCTION notify_id('space_sandbox');
-- The controller is told of rows that lag and that nobody holds, not of each change.
CREATE TRIGGER sandboxes_lag_inserted AFTER INSERT ON sandboxes
    FOR EACH ROW WHEN (NEW.lease_owner IS NULL) EXECUTE FUNCTION notify_id('space_lagging');
CREATE TRIGGER sandboxes_lag AFTER UPDATE ON sandboxes
    FOR EACH ROW WHEN (
        (OLD.state <> NEW.state OR OLD.generation <> NEW.generation)
        AND (NEW.lease_until IS NULL OR NEW.lease_until < now())
        AND (NEW.observed_generation < NEW.generation
             OR NEW.state IN ('creating', 'suspending', 'restoring', 'deleting')))
    EXECUTE FUNCTION notify_id('space_lagging');
CREATE TRIGGER operations_changed AFTER UPDATE ON operations
    FOR EACH ROW WHEN (OLD.status <> NEW.status) EXECUTE FUNCTION notify_id('space_operation');
CREATE TRIGGER api_keys_changed AFTER UPDATE ON api_keys
    FOR EACH ROW WHEN (OLD.revoked_at IS DISTINCT FROM NEW.revoked_at) EXECUTE FUNCTION notify_id('space_key');

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
    -- what a client wrote beside it: nothing secret, and nothing that we go by
    metadata jsonb NOT NULL DEFAULT '{}',
    -- how often a provider has rotated the value since somebody set it
    rotated bigint NOT NULL DEFAULT 0,
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
