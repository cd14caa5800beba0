-- A name is a template as its users know it, with an id that stays while what it points to changes: `digest` is what
-- its tag `default` stands for, null until its first build has succeeded.
ALTER TABLE template_names
    ADD COLUMN id text NOT NULL DEFAULT substr(md5(random()::text || clock_timestamp()::text), 1, 20) UNIQUE,
    ADD COLUMN public boolean NOT NULL DEFAULT false,
    ADD COLUMN created_at timestamptz NOT NULL DEFAULT now(),
    ADD COLUMN updated_at timestamptz NOT NULL DEFAULT now(),
    ADD COLUMN build_id uuid,
    ADD COLUMN tagged_at timestamptz NOT NULL DEFAULT now(),
    ALTER COLUMN digest DROP NOT NULL;

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
