// Package defaults reads what an image says about commands that say nothing
// themselves: the user they run as, the directory they begin in, and variables
// of their environment. A template build writes it; most images have none.
package defaults

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"syscall"
)

// Path is where the file is. A variable for the tests.
var Path = "/etc/space/defaults.json"

// maxSize bounds the file, in bytes: it is read for each command.
const maxSize = 256 << 10

// Defaults are what the file holds. A field that is empty says nothing.
type Defaults struct {
	User    string            `json:"user,omitempty"`
	Workdir string            `json:"workdir,omitempty"`
	Env     map[string]string `json:"env,omitempty"`
}

// Read returns what the image says. A file that is missing, is none, or makes no
// sense says nothing: commands still have to start in order to mend it.
func Read() (d Defaults) {
	file, err := os.OpenFile(Path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe would be waited for
	if err != nil {
		return d
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil || !info.Mode().IsRegular() || info.Size() > maxSize {
		return d
	}
	if json.NewDecoder(file).Decode(&d) != nil {
		return Defaults{}
	}
	return d
}

// Write makes them the image's.
func Write(d Defaults) error {
	text, err := json.MarshalIndent(d, "", " ")
	if err != nil {
		return err
	}
	if len(text) > maxSize {
		return errors.New("the environment is larger than an image can keep")
	}
	if err := os.MkdirAll(filepath.Dir(Path), 0o755); err != nil {
		return err
	}
	os.Remove(Path) // whatever it is, it is not written through
	return os.WriteFile(Path, append(text, '\n'), 0o644)
}
