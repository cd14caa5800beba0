-- Volumes, and which sandboxes have which mounted. One that is `making` or `deleting` is nobody's yet, or no more.
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

-- a list of {volume, name, path}
ALTER TABLE sandboxes ADD COLUMN volumes jsonb NOT NULL DEFAULT '[]';
CREATE INDEX sandboxes_volumes ON sandboxes USING gin (volumes jsonb_path_ops)
    WHERE volumes <> '[]' AND state <> 'deleted';
