-- Each move of a sandbox looks for its running operations; those that have ended become many.
CREATE INDEX operations_running ON operations (sandbox_id) WHERE status = 'running';

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
