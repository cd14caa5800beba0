-- What the surface of E2B's clients needs of a sandbox; the defaults are what `/v1` has meant so far.

ALTER TABLE sandboxes
    -- its other ports need no key
    ADD COLUMN public_ports boolean NOT NULL DEFAULT false,
    -- the Host that a server in it sees; ${PORT} in it stands for the port
    ADD COLUMN mask_host text,
    -- what such a client said at its creation and reads back; null: it was made otherwise
    ADD COLUMN e2b jsonb,
    -- the timeout does not run while it is suspended or paused, and begins anew when it runs again
    ADD COLUMN timeout_restarts boolean NOT NULL DEFAULT false,
    -- a suspension by the timeout keeps the memory
    ADD COLUMN timeout_memory boolean NOT NULL DEFAULT true;
