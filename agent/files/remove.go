package files

import (
	"os"

	"space/agent/fault"
)

// Remove deletes the entry at path, of a symlink the link. A directory must be
// empty unless recursive is set.
func Remove(path string, recursive bool) error {
	if path == "/" {
		return fault.Invalid("path", "the root directory cannot be deleted; delete the sandbox")
	}
	if _, err := os.Lstat(path); err != nil {
		return missing(err, path)
	}
	if recursive {
		return explain(os.RemoveAll(path), path)
	}
	return explain(os.Remove(path), path)
}
