package hook

import (
	"encoding/json"
	"os"

	"space/agent/command"
)

// MannerExt is what the name of the file has behind the hook's that says how it is run.
const MannerExt = ".json"

const maxManner = 256 << 10

// Manner is how a hook is run: as whom, where, and with which variables. A hook
// without one runs as root in /.
type Manner struct {
	User    string            `json:"user,omitempty"`
	Workdir string            `json:"workdir,omitempty"`
	Env     map[string]string `json:"env,omitempty"`
}

// mannerOf reads the manner of the hook at path; one that makes no sense counts
// as none.
func mannerOf(path string) Manner {
	m := Manner{User: "root", Workdir: "/"}
	info, err := os.Stat(path + MannerExt)
	if err != nil || !info.Mode().IsRegular() || info.Size() > maxManner {
		return m
	}
	text, err := os.ReadFile(path + MannerExt)
	var said Manner
	if err != nil || json.Unmarshal(text, &said) != nil {
		return m
	}
	m.Env = said.Env
	if said.User != "" {
		m.User = said.User
	}
	if said.Workdir != "" {
		m.Workdir = said.Workdir
	}
	return m
}

// specOf is the command that the hook at path is.
func specOf(path, reason string, outputLimit int64) command.Spec {
	m := mannerOf(path)
	env := map[string]string{"SPACE_REASON": reason}
	for name, value := range m.Env {
		env[name] = value
	}
	return command.Spec{Args: []string{path}, User: m.User, Cwd: m.Workdir, Env: env, OutputLimit: outputLimit}
}
