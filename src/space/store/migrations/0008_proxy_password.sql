-- The password of a sandbox's upstream proxy that came with its policy, sealed.
ALTER TABLE sandboxes
    ADD COLUMN proxy_password bytea,
    ADD COLUMN proxy_password_key text,
    ADD CONSTRAINT sandboxes_proxy_password CHECK ((proxy_password IS NULL) = (proxy_password_key IS NULL));
