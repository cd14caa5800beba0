package envd

import (
	"strconv"
	"syscall"
)

// The messages of the Process service. Fields that are absent are nil or zero;
// of the pointers in one of the "oneof" groups at most one is set.

type processConfig struct {
	Cmd  string            `json:"cmd,omitempty"`
	Args []string          `json:"args,omitempty"`
	Envs map[string]string `json:"envs,omitempty"`
	Cwd  *string           `json:"cwd,omitempty"`
}

type ptyConfig struct {
	Size *ptySize `json:"size"`
}

type ptySize struct {
	Cols uint32 `json:"cols"`
	Rows uint32 `json:"rows"`
}

type startRequest struct {
	Process *processConfig `json:"process"`
	PTY     *ptyConfig     `json:"pty"`
	Tag     *string        `json:"tag"`
	Stdin   *bool          `json:"stdin"`
}

// selector names a process: one of both is set.
type selector struct {
	PID *uint32 `json:"pid"`
	Tag *string `json:"tag"`
}

type selectRequest struct {
	Process *selector `json:"process"`
}

type updateRequest struct {
	Process *selector  `json:"process"`
	PTY     *ptyConfig `json:"pty"`
}

type processInput struct {
	Stdin *[]byte `json:"stdin"`
	PTY   *[]byte `json:"pty"`
}

type inputRequest struct {
	Process *selector     `json:"process"`
	Input   *processInput `json:"input"`
}

type streamInputRequest struct {
	Start     *selectRequest `json:"start"`
	Data      *inputRequest  `json:"data"`
	Keepalive *empty         `json:"keepalive"`
}

type signalRequest struct {
	Process *selector `json:"process"`
	Signal  signal    `json:"signal"`
}

type signal int32

func (signal) Number(name string) (int32, bool) {
	switch name {
	case "SIGNAL_UNSPECIFIED":
		return 0, true
	case "SIGNAL_SIGTERM":
		return int32(syscall.SIGTERM), true
	case "SIGNAL_SIGKILL":
		return int32(syscall.SIGKILL), true
	}
	return 0, false
}

type empty struct{}

type processInfo struct {
	Config processConfig `json:"config"`
	PID    int           `json:"pid"`
	Tag    string        `json:"tag,omitempty"`
}

type processList struct {
	Processes []processInfo `json:"processes"`
}

// processMessage is one message of a process's stream.
type processMessage struct {
	Event processEvent `json:"event"`
}

type processEvent struct {
	Start     *startEvent `json:"start,omitempty"`
	Data      *dataEvent  `json:"data,omitempty"`
	End       *endEvent   `json:"end,omitempty"`
	Keepalive *empty      `json:"keepalive,omitempty"`
}

type startEvent struct {
	PID int `json:"pid"`
}

type dataEvent struct {
	Stdout []byte `json:"stdout,omitempty"`
	Stderr []byte `json:"stderr,omitempty"`
	PTY    []byte `json:"pty,omitempty"`
}

type endEvent struct {
	ExitCode int    `json:"exitCode"`
	Exited   bool   `json:"exited"`
	Status   string `json:"status"`
	Error    string `json:"error,omitempty"`
}

// The messages of the Filesystem service.

type pathRequest struct {
	Path string `json:"path"`
}

type moveRequest struct {
	Source      string `json:"source"`
	Destination string `json:"destination"`
}

type listRequest struct {
	Path  string `json:"path"`
	Depth uint32 `json:"depth"`
}

type entryResponse struct {
	Entry entry `json:"entry"`
}

type listResponse struct {
	Entries []entry `json:"entries"`
}

// entry describes one entry; of a symlink, type and mode are those of what it leads to.
type entry struct {
	Name          string            `json:"name"`
	Type          string            `json:"type"`
	Path          string            `json:"path"`
	Size          int64String       `json:"size"`
	Mode          uint32            `json:"mode"` // the nine permission bits
	Permissions   string            `json:"permissions"`
	Owner         string            `json:"owner"`
	Group         string            `json:"group"`
	ModifiedTime  string            `json:"modifiedTime"`
	SymlinkTarget *string           `json:"symlinkTarget,omitempty"`
	Metadata      map[string]string `json:"metadata,omitempty"`
	IsSymlink     bool              `json:"isSymlink,omitempty"`
}

// int64String is written as a string: numbers of 64 bits lose digits in JavaScript.
type int64String int64

// MarshalJSON writes the string.
func (n int64String) MarshalJSON() ([]byte, error) {
	return []byte(`"` + strconv.FormatInt(int64(n), 10) + `"`), nil
}

type watchRequest struct {
	Path               string `json:"path"`
	Recursive          bool   `json:"recursive"`
	IncludeEntry       bool   `json:"includeEntry"`
	AllowNetworkMounts bool   `json:"allowNetworkMounts"`
}

type watchMessage struct {
	Start      *empty           `json:"start,omitempty"`
	Filesystem *filesystemEvent `json:"filesystem,omitempty"`
	Keepalive  *empty           `json:"keepalive,omitempty"`
}

type filesystemEvent struct {
	Name  string `json:"name"`
	Type  string `json:"type"`
	Entry *entry `json:"entry,omitempty"`
}

type watcherRequest struct {
	WatcherID string `json:"watcherId"`
}

type watcherEventList struct {
	Events []filesystemEvent `json:"events"`
}
